-- page: analysis/results/lean_clients.md
create view lean as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, small + 10 * (classes = 'apart') as place from d_lean;
create view ahead as
select *, best in ('HERON, 8 directions', 'HO-SFL, 8 directions', 'mixed, estimates') as zeroth from d_lean_map where small > 0;
create view step as select *, method || ' ' || client_memory as what, step_bytes / 1024 as kib from d_lean_memory;

-- Zeroth order is nowhere ahead by more than two deviations once a small device can hold
select count(*) = 0 from ahead where pool <> 'forward passes alone' and zeroth and deviations > 2;
-- it is ahead by two deviations in # of # cells of the map
select sum(zeroth and deviations > 2), count(*) from ahead where pool = 'forward passes alone';
-- A step of CSE-FSL needs # KiB, HERON's #. Checkpoints leave it at #,
select nth(what, 'cse_fsl none | heron-head-8 none | cse_fsl checkpoint') as k, kib from step;
-- it needs #, in four #, less than
select nth(what, 'cse_fsl accumulate:2 | cse_fsl accumulate:4') as k, kib from step;
-- less than forward passes of the whole mini-batch, with no multiply-accumulate more
select max(f.kib) < min(h.kib) from step f, step h where f.what = 'cse_fsl accumulate:4' and h.method = 'heron-head-8';
-- with no multiply-accumulate more, and the same
select max(step_macs) = min(step_macs) from step where method = 'cse_fsl' and client_memory <> 'checkpoint';
-- SFLV2 needs #, #, # and a third more operations, FedAvg #, #, #.
select nth(what, 'sflv2 none | sflv2 accumulate:2 | sflv2 accumulate:4 | fedavg none | fedavg accumulate:2 | fedavg accumulate:4') as k, kib
from step;
-- takes # M multiply-accumulates a step, CSE-FSL #.
select nth(what, 'heron-head-8 none | cse_fsl none') as k, step_macs / 1e6 from step;
-- | MNIST, test accuracy in %
select way, m, s from (
    select way, place, mean as m, sd as s from lean union all
    select way, place + 0.5, lacked_mean_percent, lacked_sd_percent from lean where place in (16, 19)
) where place in (0, 6, 9, 16, 16.5, 19, 19.5) order by place;
create view apart as select *, nth(way, 'CSE-FSL, left out | CSE-FSL, uploads only | mixed, estimates | HERON, 8 directions | frozen client'
    || ' | mixed, last stage | CSE-FSL, all') as w from lean where classes = 'apart';
create view against as select a.way as one, b.way as two, a.place, (a.mean - b.mean) / sqrt((a.sd * a.sd + b.sd * b.sd) / 2) as deviations
from lean a join lean b using (place);
-- three classes with them: # ± # % at 60 % apart, # on the three
select mean, sd, lacked_mean_percent from apart where w = 1 and small = 6;
-- pass forward and upload, it is # ± #, and # ± # at 90 %. Mixed with estimates has # ± # and # ± #,
select w * 10 + small as k, mean, sd from apart where w in (2, 3);
-- # and # deviations more: not told apart
select place as k, deviations from against where one = 'mixed, estimates' and two = 'CSE-FSL, uploads only' and place in (16, 19);
-- not told apart by three seeds
select max(deviations) < 2 from against where one = 'mixed, estimates' and two = 'CSE-FSL, uploads only' and place in (16, 19);
-- HERON with everybody has # ± # and # ± #, the frozen client # ± # and # ± #, so
select w * 10 + small as k, mean, sd from apart where w in (4, 5);
-- with # and # directions a parameter
select small as k, directions_per_parameter from apart where w = 4;
-- last stage's backward pass fits** (# KiB). Mixed with it
select kib from step where what = 'exact none';
-- Mixed with it has # ± # and # ± # %, CSE-FSL with everybody # ± # and # ± #. Mixing
select w * 10 + small as k, mean, sd from apart where w in (6, 7);
-- FedAvg is first in # of # cells of the map, since
select sum(best = 'FedAvg, all'), count(*) from ahead where pool like '%two parts';
-- sends # KiB up in 48 rounds, CSE-FSL # in 24
select nth(way, 'FedAvg, all | CSE-FSL, all') as k, bytes_up / 1024 from lean where place = 16;
-- it is at 80 % after # virtual minutes, CSE-FSL after #. SFLV2
select nth(way, 'FedAvg, all | CSE-FSL, all') as k, minutes_to_high_mean from d_lean_virtual
where classes = 'apart' and small = 6 and federation = 'phones' and uplink = 100000;
-- most accurate of the same mix, with # ± #.
select mean, sd from lean where way = 'SFLV2, all' and place = 0;
-- SFLV2 is the most accurate of the same mix
select max(mean) = max(case way when 'SFLV2, all' then mean end) from lean where place < 10;
-- costs CSE-FSL nothing (# ± # %, all # ± #) and is quicker, as the rest is; nine of ten cost # points
select 1 as k, mean, sd from lean where way = 'CSE-FSL, left out' and place = 6 union all
select 2, mean, sd from lean where way = 'CSE-FSL, all' and place = 6 union all
select 3, a.mean - b.mean, null from lean a join lean b using (place) where a.way = 'CSE-FSL, all' and b.way = 'CSE-FSL, left out' and place = 9;
-- is then # deviations ahead of it, and # behind CSE-FSL in parts
select 1 as k, deviations from against where place = 9 and one = 'HERON, 8 directions' and two = 'CSE-FSL, left out' union all
select 2, deviations from against where place = 9 and one = 'CSE-FSL, all' and two = 'HERON, 8 directions';
-- HERON #, mixed with estimates #, CSE-FSL in parts #, FedAvg #. Eight
select nth(way, 'HERON, 8 directions | mixed, estimates | CSE-FSL, all | FedAvg, all') as k, joules_mean from d_lean_virtual
where classes = 'apart' and small = 6 and federation = 'sensors' and uplink = 1000000;
-- HERON # % with one direction and # with eight, estimated head; DeComFL #. Steps
select nth(method, 'heron | heron-8 | decomfl-8') as k, accuracy_mean_percent from d_lean_steps where best and data = 'mnist-0';
-- are at an edge of what was tried
select count(*) = sum(method in ('heron', 'decomfl-8', 'upload', 'mixed-exact')) and count(*) = 4 from d_lean_steps where best and at_edge <> '';
