-- page: analysis/results/lean_clients.md
create view lean_rows as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, small + 10 * (classes = 'apart') as place from d_lean;
create view lean_ahead as
select *, best in ('HERON, 8 directions', 'HO-SFL, 8 directions', 'mixed, estimates') as zeroth from d_lean_map where small > 0;
create view lean_step as select *, method || ' ' || client_memory as what, step_bytes / 1024 as kib from d_lean_memory;

-- Zeroth order is nowhere ahead by more than two deviations once a small device can hold
select count(*) = 0 from lean_ahead where pool <> 'forward passes alone' and zeroth and deviations > 2;
-- small ones that estimate are first in # of # cells of the map, by two deviations in #; leaving the small ones out is first in #, by two in #.
select sum(zeroth), count(*), sum(zeroth and deviations > 2), sum(best like '%left out'), sum(best like '%left out' and deviations > 2)
from lean_ahead where pool = 'forward passes alone';
-- clients that backpropagate beside small ones that estimate are first
select min(best = 'mixed, estimates') from lean_ahead where pool = 'forward passes alone' and zeroth;
-- A step of CSE-FSL needs # KiB, HERON's #. Checkpoints leave it at #,
select nth(what, 'cse_fsl none | heron-head-8 none | cse_fsl checkpoint') as k, kib from lean_step;
-- it needs #, in four #, less than
select nth(what, 'cse_fsl accumulate:2 | cse_fsl accumulate:4') as k, kib from lean_step;
-- less than forward passes of the whole mini-batch, with no multiply-accumulate more
select max(f.kib) < min(h.kib) from lean_step f, lean_step h where f.what = 'cse_fsl accumulate:4' and h.method = 'heron-head-8';
-- with no multiply-accumulate more, and the same
select max(step_macs) = min(step_macs) from lean_step where method = 'cse_fsl' and client_memory <> 'checkpoint';
-- SFLV2 needs #, #, # and a third more operations, FedAvg #, #, #.
select nth(what, 'sflv2 none | sflv2 accumulate:2 | sflv2 accumulate:4 | fedavg none | fedavg accumulate:2 | fedavg accumulate:4') as k, kib
from lean_step;
-- takes # M multiply-accumulates a step, CSE-FSL #.
select nth(what, 'heron-head-8 none | cse_fsl none') as k, step_macs / 1e6 from lean_step;
-- | MNIST, test accuracy in %
select way, m, s from (
    select way, place, mean as m, sd as s from lean_rows union all
    select way, place + 0.5, lacked_mean_percent, lacked_sd_percent from lean_rows where place in (16, 19)
) where place in (0, 6, 9, 16, 16.5, 19, 19.5) order by place;
create view lean_apart as select *, nth(way, 'CSE-FSL, left out | CSE-FSL, uploads only | mixed, estimates | HERON, 8 directions | frozen client'
    || ' | mixed, last stage | CSE-FSL, all') as w from lean_rows where classes = 'apart';
create view lean_against as select a.way as one, b.way as two, a.place, (a.mean - b.mean) / sqrt((a.sd * a.sd + b.sd * b.sd) / 2) as deviations
from lean_rows a join lean_rows b using (place);
-- three classes with them: # ± # % at 60 % apart, # on the three
select mean, sd, lacked_mean_percent from lean_apart where w = 1 and small = 6;
-- pass forward and upload, it is # ± #, and # ± # at 90 %. Mixed with estimates has # ± # and # ± #,
select w * 10 + small as k, mean, sd from lean_apart where w in (2, 3);
-- # and # deviations more: not told apart
select place as k, deviations from lean_against where one = 'mixed, estimates' and two = 'CSE-FSL, uploads only' and place in (16, 19);
-- not told apart by three seeds
select max(deviations) < 2 from lean_against where one = 'mixed, estimates' and two = 'CSE-FSL, uploads only' and place in (16, 19);
-- HERON with everybody has # ± # and # ± #, the frozen client # ± # and # ± #, so
select w * 10 + small as k, mean, sd from lean_apart where w in (4, 5);
-- do learn, with # directions a parameter
select max(directions_per_parameter) from lean_apart where w = 4;
-- last stage's backward pass fits** (# KiB). Mixed with it
select kib from lean_step where what = 'exact none';
-- Mixed with it has # ± # and # ± # %, CSE-FSL with everybody # ± # and # ± #. Does
select w * 10 + small as k, mean, sd from lean_apart where w in (6, 7);
-- It is first in # of # cells, by two deviations in #;
select sum(best = 'mixed, last stage'), count(*), sum(best = 'mixed, last stage' and deviations > 2)
from lean_ahead where pool like '%last stage%';
-- it is # and # deviations ahead of mixing with estimates, # and # of an exact last
select nth(two, 'mixed, estimates | last stage exact') * 100 + place as k, deviations from lean_against
where one = 'mixed, last stage' and place in (16, 19);
-- three seeds do not tell these apart.
select max(deviations) < 2 from lean_against
where one = 'mixed, last stage' and place in (16, 19) and two in ('mixed, estimates', 'last stage exact');
-- FedAvg is first in # of # cells of the map, since
select sum(best = 'FedAvg, all'), count(*) from lean_ahead where pool like '%two parts';
-- sends # KiB up in 48 rounds, CSE-FSL # in 24
select nth(way, 'FedAvg, all | CSE-FSL, all') as k, bytes_up / 1024 from lean_rows where place = 16;
-- it is at 80 % after # virtual minutes, CSE-FSL after #. SFLV2
select nth(way, 'FedAvg, all | CSE-FSL, all') as k, minutes_to_high_mean from d_lean_virtual
where classes = 'apart' and small = 6 and federation = 'phones' and uplink = 100000;
-- most accurate of the same mix, with # ± #.
select mean, sd from lean_rows where way = 'SFLV2, all' and place = 0;
-- SFLV2 is the most accurate of the same mix
select max(mean) = max(case way when 'SFLV2, all' then mean end) from lean_rows where place < 10;
-- costs CSE-FSL nothing (# ± # %, all # ± #) and is quicker, as the rest is; nine of ten cost # points
select 1 as k, mean, sd from lean_rows where way = 'CSE-FSL, left out' and place = 6 union all
select 2, mean, sd from lean_rows where way = 'CSE-FSL, all' and place = 6 union all
select 3, a.mean - b.mean, null from lean_rows a join lean_rows b using (place) where a.way = 'CSE-FSL, all' and b.way = 'CSE-FSL, left out' and place = 9;
-- is then # deviations ahead of it, and # behind CSE-FSL in parts
select 1 as k, deviations from lean_against where place = 9 and one = 'HERON, 8 directions' and two = 'CSE-FSL, left out' union all
select 2, deviations from lean_against where place = 9 and one = 'CSE-FSL, all' and two = 'HERON, 8 directions';
-- HERON #, mixed with estimates #, CSE-FSL in parts #, FedAvg #. Eight
select nth(way, 'HERON, 8 directions | mixed, estimates | CSE-FSL, all | FedAvg, all') as k, joules_mean from d_lean_virtual
where classes = 'apart' and small = 6 and federation = 'sensors' and uplink = 1000000;
-- HERON # % with one direction and # with eight, estimated head; DeComFL #. Steps
select nth(method, 'heron | heron-8 | decomfl-8') as k, accuracy_mean_percent from d_lean_steps where best and data = 'mnist-0';
-- with one direction is at an edge of what was tried.
select count(*) = 1 and min(method = 'heron') from d_lean_steps where best and at_edge <> '';
create view fashion_rows as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, small + 10 * (classes = 'apart') as place from d_lean_fashion;
create view fashion_ahead as
select *, best in ('HERON, 8 directions', 'HO-SFL, 8 directions', 'mixed, estimates') as zeroth from d_lean_fashion_map where small > 0;
-- A frozen client has # ± # % where it had # ± #, so
select 1 as k, mean, sd from fashion_rows where way = 'frozen client' and place = 16 union all
select 2, mean, sd from lean_rows where way = 'frozen client' and place = 16;
-- | Fashion-MNIST, test accuracy in %
select way, mean, sd from fashion_rows order by place;
-- or mixed) is first in # of # cells, by two deviations in #.
select sum(zeroth), count(*), sum(zeroth and deviations > 2) from fashion_ahead where pool = 'forward passes alone';
-- At 60 % apart uploads alone have # ± # %, mixed with estimates # ± #, HERON with everybody # ± #, # deviations ahead of the frozen client.
select k, mean, sd from (
    select nth(way, 'CSE-FSL, uploads only | mixed, estimates | HERON, 8 directions') as k, mean, sd from fashion_rows where place = 16 union all
    select 4, (a.mean - b.mean) / sqrt((a.sd * a.sd + b.sd * b.sd) / 2), null from fashion_rows a join fashion_rows b using (place)
    where place = 16 and a.way = 'HERON, 8 directions' and b.way = 'frozen client'
) where k is not null;
-- Mixed with it is first in # of # cells, by two deviations in #; zeroth order in #.
select sum(best = 'mixed, last stage'), count(*), sum(best = 'mixed, last stage' and deviations > 2), sum(zeroth)
from fashion_ahead where pool like '%last stage%';
-- FedAvg is first in # of # cells, mixed with the last stage in #; zeroth order in #.
select sum(best = 'FedAvg, all'), count(*), sum(best = 'mixed, last stage'), sum(zeroth) from fashion_ahead where pool like '%two parts';
-- CSE-FSL in two parts has # ± # %, SFLV2 # ± #, FedAvg # ± #.
select k, mean, sd from (
    select nth(way, 'CSE-FSL, all | SFLV2, all | FedAvg, all') as k, mean, sd from fashion_rows where place = 16
) where k is not null;
-- HERON with one direction (# %) and DeComFL (#) have
select nth(method, 'heron | decomfl-8') as k, accuracy_mean_percent from d_lean_fashion_steps where best and data = 'fashion-mnist-0';
