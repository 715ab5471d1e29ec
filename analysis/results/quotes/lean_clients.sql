-- page: analysis/results/lean_clients.md
create view lean as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, small + 10 * (classes = 'apart') as place from d_lean;
create view ahead as select *, classes = 'apart' as apart from d_lean_map where small > 0;

-- | MNIST, test accuracy in % | all hold the same mix: 0 % small
select way, m, s from (
    select way, place, mean as m, sd as s from lean union all
    select way, place + 0.5, lacked_mean_percent, lacked_sd_percent from lean where place in (16, 19)
) where place in (0, 6, 9, 16, 16.5, 19, 19.5) order by place;
-- | a client's step | KiB |
select method || case client_memory when 'none' then '' else ', ' || client_memory end, round(step_bytes / 1024), step_macs / 1e6
from d_lean_memory;
