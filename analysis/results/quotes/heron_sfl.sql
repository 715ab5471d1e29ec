-- page: analysis/results/heron_sfl.md

-- | | iid | HERON minus this row |
with n(method, name) as (values ('heron', 'HERON'), ('heron-frozen', 'its client frozen (`--freeze client`)'),
    ('heron-frozen-head', 'its head frozen (`--freeze auxiliary`)'), ('heron-still', 'neither moves (`--lr-client 0`)'),
    ('cse_fsl', 'CSE-FSL'), ('fsl_sage', 'FSL-SAGE'), ('sflv1', 'SFLV1'), ('sflv2', 'SFLV2'))
select name, accuracy_mean_percent, accuracy_sd_percent, case when method <> 'heron' then heron_less_it_mean end as less,
    case when method <> 'heron' then heron_less_it_mean - half(heron_less_it_sd, seeds) end as least,
    case when method <> 'heron' then heron_less_it_mean + half(heron_less_it_sd, seeds) end as most
from n join c_fig2 using (method) order by setting desc;
-- from # to # nat,
with q(k, c1, c2) as (
select nth(method, 'heron | heron-frozen | heron-frozen-head | heron-still | cse_fsl') as k,
    case method when 'heron' then local_loss_first end as first, local_loss_last
from c_fig2 where setting = 'iid')
select k, c1, c2 from q where k in (1);
create view narrow as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, less_frozen_mean as gain, less_frozen_sd as gain_sd from c_fig4;
-- HERON ends between # and # %, the frozen client at # ± #
select min(case when not frozen then mean end), max(case when not frozen then mean end), max(case when frozen then mean end),
    max(case when frozen then sd end) from narrow where cut = 1;
-- No gain's interval lies above 0. With two
select max(gain - half(gain_sd, seeds)) <= 0 from narrow where not frozen and cut = 1;
-- With two blocks at the client it ends between # and # %, the frozen client at # ± #.
select min(case when not frozen then mean end), max(case when not frozen then mean end), max(case when frozen then mean end),
    max(case when frozen then sd end) from narrow where cut = 2;
-- in all # cells
select count(*) from c_fig3 where method = 'heron' and not (panel = 'beta' and value = 1);
-- ends at #, #, #, # %. With
select accuracy_mean_percent from c_fig3 where method = 'heron' and panel = 'm' and value in (10, 20, 50, 100) order by value;
-- is # ± # before training and # ± # after HERON's 60 rounds. After CSE-FSL's it is # ± #
select nth(model, 'before training, seed 1 | HERON, 60 rounds | CSE-FSL, 60 rounds') as k,
    effective_rank, effective_rank_error from c_fig7;
-- step holds # MiB (HERON), # (CSE-FSL) and # (SFLV2)
select nth(method, 'heron | cse_fsl | sflv2') as k, client_peak_bytes / 1048576 from c_table2;
-- it takes #, # and # G multiply-accumulates.
select nth(method, 'heron | cse_fsl | sflv2') as k, client_macs_a_step / 1e9 from c_table2;
-- | until 80 % | GiB | with heads |
select c1, c4, c3, c5, c7, c6, c9, c8 from c_table2_txt where cells = 9 and c1 in ('SFLV1', 'SFLV2', 'CSE-FSL', 'FSL-SAGE', 'HERON');
create view stages as
select *, setting like 'CIFAR-10%' as cifar, accuracy_mean_percent as mean, accuracy_sd_percent as sd, client_peak_bytes / 1048576 as mib,
    client_macs / 1e9 as work, share_mean_percent as share, share_sd_percent as share_sd from c_pays;
create view pairs as
select m.*, p.ahead_mean, p.ahead_sd, p.ahead_by_seed, o.cosine as other_cosine, o.cosine_sd as other_sd, o.passes as other_passes
from c_pays_pairs p join stages m using (setting, method) join stages o on o.setting = p.setting and o.method = p.beside;
-- | | CIFAR-10 | share | MiB |
with n(method, name) as (values ('heron-frozen', 'frozen client'), ('heron', 'HERON'), ('heron-head', 'HERON, exact head'),
    ('heron-head-8', 'HERON, exact head, eight directions'), ('ho_sfl', 'HO-SFL'),
    ('heron-n2', 'last stage exact, the others frozen'),
    ('heron-n2-zo', 'last stage exact, the others estimated'), ('heron-n4', 'last two stages exact'), ('cse_fsl', 'CSE-FSL, all stages'),
    ('sflv2', 'SFLV2'))
select name, mean, sd, share, case when method not in ('heron-frozen', 'sflv2') then share_sd end as share_sd,
    case when method <> 'heron-frozen' then mib end as mib
from n join stages using (method) order by cifar desc;
-- HERON closes # ± # % of the gap on CIFAR-10, with an exact head # % (# to #), and
select h.share, h.share_sd, e.share, e.share - half(e.share_sd, 3), e.share + half(e.share_sd, 3) from stages h join stages e using (cifar)
where cifar and h.method = 'heron' and e.method = 'heron-head';
-- than HERON: # G against #, and # against #.
select n.work, h.work from stages n join stages h using (cifar)
where n.method = 'heron-n2' and h.method = 'heron' order by cifar desc;
-- stage are # (# to #) points above none on CIFAR-10 and # (# to #) on Fashion-MNIST, both
select ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where method = 'heron-n2-zo' order by cifar desc;
-- gradient is # ± #. - **The
select cosine, cosine_sd from stages where cifar and method = 'heron-head';
-- direction (mu to 0) are # (# to #) points ahead
with q(c0, c1, c2, c3, c4) as (
select cosine, cosine_sd, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where cifar and method = 'heron-head-jvp')
select c2, c3, c4 from q;
-- directions are # (# to #) points ahead
with q(c0, c1, c2, c3, c4, c5) as (
select cosine, cosine_sd, cosine_rule, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where cifar and method = 'heron-head-8')
select c3, c4, c5 from q;
-- one, for # G multiply-accumulates beside CSE-FSL's #. One
with q(c0, c1, c2, c3) as (
select p.passes, p.other_passes, p.work, c.work from pairs p join stages c using (cifar)
where cifar and p.method = 'heron-head-8' and c.method = 'cse_fsl')
select c2, c3 from q;
create view uplink as select * from c_pays_uplink where setting like 'CIFAR-10%';
-- smashed samples are # KiB a client and round on CIFAR-10, a client's part and head # KiB.
select smashed_bytes / 1024.0, bytes / 1024.0 from uplink where method = 'cse_fsl' and uplink = 'dense';
-- | | MNIST, k = 4 | Fashion-MNIST, k = 2 | k = 4 | k = 16 |
with n(method, name) as (values ('heron-frozen', 'frozen client'), ('heron', 'HERON, one direction'),
    ('heron-head', 'HERON, exact head, one direction'), ('heron-head-8', 'HERON, exact head, eight directions'),
    ('ho_sfl-8', 'HO-SFL, eight directions'), ('cse_fsl', 'CSE-FSL'), ('sflv2', 'SFLV2'))
select name, mean, sd from (
    select name, accuracy_mean_percent as mean, accuracy_sd_percent as sd, nth(cell, 'mnist-k4 | fashion-k2 | fashion-k4 | fashion-k16') as place
    from n join c_narrow using (method) where best
    union all
    select 'directions per parameter of eight', directions_per_parameter, null, nth(cell, 'mnist-k4 | fashion-k2 | fashion-k4 | fashion-k16')
    from c_narrow where best and method = 'heron-head-8') order by place;
create view cuts as select *, nth(setting, 'MNIST, cut of 4 features | Fashion-MNIST, cut of 4 features'
    || ' | Fashion-MNIST, cut of 2 features | Fashion-MNIST, cut of 16 features') as k from pays where study = 'c_narrow';
-- the frozen client by # (# to #) points on MNIST and # (# to #) on Fashion-MNIST. On Fashion-MNIST with 2 and 16 features they are ahead by # (# to #) and # (# to #).
select k, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from cuts where method = 'HERON, exact head, 8 directions';
-- In the table's order they close #, #, # and # % of the gap
select case k when 2 then 3 when 3 then 2 else k end as k, share_percent from cuts where method = 'HERON, exact head, 8 directions';
-- features has # %, HERON with 4 features and eight directions #, HO-SFL #: no significant difference. The first sends # MiB of smashed
select w.accuracy_mean_percent, h.accuracy_mean_percent, o.accuracy_mean_percent, 64 * 16 * 4 * 3000 / 1048576.0 from c_narrow w, c_narrow h, c_narrow o
where w.best and h.best and o.best and o.cell = 'fashion-k4' and o.method = 'ho_sfl-8' and w.cell = 'fashion-k16' and w.method = 'heron-frozen' and h.cell = 'fashion-k4' and h.method = 'heron-head-8';
-- second # with its models
select bytes / 1048576 from c_narrow where best and cell = 'fashion-k4' and method = 'heron-head-8';
create view more as select *, nth(cell, 'mnist-k4 | fashion-k4 | fashion-k4-momentum | fashion-k8 | cifar-k4 | cifar-k16') as place
from c_narrow_more where best;
create view wider as select *, nth(setting, 'CIFAR-10, cut of 4 features | CIFAR-10, cut of 16 features | Fashion-MNIST, cut of 8 features'
    || ' | MNIST, cut of 4 features | Fashion-MNIST, cut of 4 features') as k from pays where study = 'c_narrow_more';
-- client by # (# to #) points and closes # % of
with q(c0, c1, c2, c3, c4) as (
select directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3), share_percent from wider where k = 1 and method like 'HERON%')
select c1, c2, c3, c4 from q;
-- features its lead of # (# to #) is not significant
with q(k, c1, c2, c3, c4, c5) as (
select 1 as k, share_percent, null, null, null, null from wider where k = 1 and method like 'HO-SFL%' union all
select 2, directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3), share_percent from wider where k = 2 and method like 'HERON%' union all
select 3, share_percent, null, null, null, null from wider where k = 2 and method like 'HO-SFL%' union all
select 4, directions_per_parameter, share_percent, null, null, null from wider where k = 3)
select k, c2, c3, c4 from q where k in (2);
create view fleet as select *, cell = 'group' as grouped from c_fleet where best and cell <> 'group-trains';
-- to # ± # % with GroupNorm and # ± # with BatchNorm
select nth(cell, 'group | batch') as k, accuracy_mean_percent, accuracy_sd_percent from c_fleet_pretrain;
-- | | GroupNorm | BatchNorm |
with n(method, name) as (values ('heron-none', 'no adaptation'), ('heron-statistics', 'statistics taken anew, nothing trains'),
    ('heron-1', 'HERON, one direction'), ('heron-8', 'HERON, eight directions'), ('heron-32', 'HERON, 32 directions'),
    ('heron-norm-8', 'HERON, eight directions, of the 160 numbers of all normalisations alone'), ('ho_sfl-8', 'HO-SFL, eight directions'),
    ('heron-last', 'last stage exact, the others frozen'), ('sflv2-all', 'SFLV2, all three stages'), ('cse_fsl', 'CSE-FSL, along the head''s loss'), ('sflv2', 'SFLV2, along the server''s loss'))
select name, accuracy_mean_percent, accuracy_sd_percent from n join fleet using (method) order by grouped desc;
-- most of the gap from # to # % alone
select nth(method, 'heron-none | sflv2') as k, accuracy_mean_percent from fleet where grouped;
create view sensed as select *, nth(method, 'HERON, frozen head, 8 directions | HERON, frozen head | HERON, frozen head, 32 directions') as k
from pays where study = 'c_fleet' and setting like '%that differ';
-- directions, # a parameter, are ahead of no adaptation by # (# to #) points.
with q(k, c1, c2, c3, c4) as (
select k, directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from sensed where k < 3)
select k, c1, c2, c3, c4 from q where k in (1);
-- directions by # (# to #). They close
with q(c0, c1, c2, c3) as (
select directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from sensed where k = 3)
select c1, c2, c3 from q;
-- close #, # and # % of that gap
select k, share_percent from sensed;
create view trains as select * from c_fleet where best and cell = 'group-trains';
-- (GroupNorm): # ± # %
select accuracy_mean_percent, accuracy_sd_percent from trains where method = 'heron-none';
-- HERON's eight directions win # points (# to #), # ± # %.
select p.ahead_mean, p.ahead_mean - half(p.ahead_sd, 3), p.ahead_mean + half(p.ahead_sd, 3), h.accuracy_mean_percent, h.accuracy_sd_percent
from pays p, trains h where p.setting like '%server trains' and h.method = 'heron-8';
-- win more than half of what SFLV2 wins on the same stage
select share_percent > 50 from sensed where k = 1;
-- turn # % into #. On
select nth(method, 'heron-none | heron-statistics') as k, accuracy_mean_percent from fleet where not grouped;
-- directions win # (# to #) points, not significant.
with q(c0, c1, c2, c3, c4, c5) as (
select p.ahead_mean, p.ahead_mean - half(p.ahead_sd, 3), p.ahead_mean + half(p.ahead_sd, 3), s.accuracy_mean_percent - f.accuracy_mean_percent, o.accuracy_mean_percent, o.accuracy_sd_percent
from pays p, fleet f, fleet s, c_fleet o where p.study = 'c_fleet' and p.setting like '%BatchNorm%' and f.method = 'heron-statistics'
and s.method = 'sflv2' and not s.grouped and o.cell = 'batch' and o.method = 'sflv2' and o.step = 'local-3e-4')
select c0, c1, c2 from q;
-- | | G = 1 | G = 5 | G = 10 |
with n(method, name, g) as (values ('cse_fsl', 'CSE-FSL', 1), ('cse_fsl-5', 'CSE-FSL', 5), ('cse_fsl-10', 'CSE-FSL', 10),
    ('sflv2', 'SFLV2', 1), ('sflv2-5', 'SFLV2', 5), ('sflv2-10', 'SFLV2', 10))
select name, accuracy_mean_percent, accuracy_sd_percent from n join c_merge using (method) where best order by g;
create view published as select * from c_decomfl_mnist;
-- | rounds | DeComFL, printed |
select printf('%,d', d.round), d.printed_least_percent, d.printed_largest_percent, d.least_percent, d.largest_percent,
    f.printed_least_percent, f.printed_largest_percent, f.least_percent, f.largest_percent
from (select * from published where method = 'decomfl') d left join (select * from published where method = 'fedavg') f using (round)
where d.round <= 200;
-- With 2 features their mean is above CSE-FSL's.
select h.accuracy_mean_percent > c.accuracy_mean_percent from c_narrow h join c_narrow c using (cell)
where h.best and c.best and cell = 'fashion-k2' and h.method = 'heron-head-8' and c.method = 'cse_fsl';
-- SFLV2's lead over HERON is not significant.
select max(abs(heron_less_it_mean) < half(heron_less_it_sd, seeds)) from c_fig2 where setting = 'iid' and method = 'sflv2';
-- to 80 % FedAvg takes # KiB down, DeComFL #;
select nth(method, 'fedavg | decomfl') as k, (bytes_both_to_80 - bytes_up_to_80) / 1024 from c_bytes where best;
-- and HERON most (#).
select (bytes_both_to_80 - bytes_up_to_80) / 1024 from c_bytes where best order by bytes_both_to_80 - bytes_up_to_80 desc limit 1;
-- FedAvg with one step or the top 2 % takes more, and HERON most
select (f.bytes_both_to_80 - f.bytes_up_to_80 > d.bytes_both_to_80 - d.bytes_up_to_80) = (f.method in ('fedavg-1', 'fedavg-topk', 'fedavg-1-topk'))
from c_bytes f, c_bytes d where f.best and d.best and d.method = 'decomfl' and f.method like 'fedavg%';
-- FedAvg is # points below the printed range
select round(printed_least_percent - largest_percent, 1) from published where method = 'fedavg' and round = 100;
create view light as select * from c_bytes;
create view bests as select * from light where best;
-- | | accuracy | bytes up, a client and round |
with n(method, name) as (values ('fedavg', 'FedAvg'), ('fedavg-quantise', 'FedAvg, 3 bits'), ('fedavg-topk', 'FedAvg, top 2 %'),
    ('fedavg-1', 'FedAvg, one step'), ('fedavg-1-topk', 'FedAvg, one step, top 2 %'), ('decomfl', 'DeComFL'), ('hiso', 'HiSo'), ('heron', 'HERON'))
select name, accuracy_mean_percent, accuracy_sd_percent, bytes_up_a_client_and_round, rounds_to_80_by_seed,
    bytes_up_to_80 / 1024, bytes_both_to_80 / 1024
from n join bests using (method);
create view soonest as select *, min(ifnull(rounds_by_validation, 1e9)) from light where method in ('hiso', 'decomfl') group by method;
-- with # KiB up, DeComFL with #, and ends # points
with q(c0, c1, c2, c3, c4) as (
select t.bytes_up_a_client_and_round, d.bytes_up_a_client_and_round, t.bytes_up_to_80 / 1024, d.bytes_up_to_80 / 1024,
    t.accuracy_mean_percent - d.accuracy_mean_percent
from bests t, bests d where t.method = 'fedavg-topk' and d.method = 'decomfl')
select c2, c3, c4 from q;
-- One direction is by # (# to #), 32 directions
select ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from sensed where k = 2;
-- it closes # % and # % at # and # times a forward-only step's memory
select group_concat(n.share, ' '), group_concat(n.mib / h.mib, ' ')
from (select * from stages order by cifar desc) n join stages h using (cifar) where n.method = 'heron-n2' and h.method = 'heron-head';
-- head's; CSE-FSL's to #.
select local_loss_last from c_fig2 where setting = 'iid' and method = 'cse_fsl';
