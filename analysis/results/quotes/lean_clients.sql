-- page: analysis/results/lean_clients.md
create view lean_rows as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, small + 10 * (classes = 'apart') as place,
    nth(data, 'mnist | fashion-mnist | cifar10') as d from d_lean;
create view lean_ahead as
select *, best like 'HERON%' or best like 'HO-SFL%' or best like 'DeComFL%' or best = 'mixed, estimates' as zeroth, best like '%left out' as without,
    deviations >= half_apart(1, 1, 3) as clear, classes || small as situation, nth(data, 'mnist | fashion-mnist | cifar10') as d,
    nth(pool, 'forward passes alone | and the last stage''s backward pass | and a backward pass in two parts') as fits
from d_lean_map where small > 0;
create view lean_step as select *, method || ' ' || client_memory as what, step_bytes / 1024 as kib from d_lean_memory;
create view lean_against as
select d, a.way as one, b.way as two, a.place, a.mean - b.mean as more, a.mean - b.mean - half_apart(a.sd, b.sd, 3) as least,
    a.mean - b.mean + half_apart(a.sd, b.sd, 3) as most
from lean_rows a join lean_rows b using (d, place);
create view lean_table as
select d, way, place, mean, sd from lean_rows r
where place in (0, 13, 16, 19) or not exists (select 1 from lean_rows z where z.d = r.d and z.way = r.way and z.place = 0);

-- Zeroth order is nowhere ahead beyond such an interval, on none of the three data sets
select sum(zeroth and clear) = 0 and count(distinct d) = 3 from lean_ahead;
-- The map has # trained situations, and # accounts of each
select count(distinct situation), count(distinct fleet || uplink) from lean_ahead;
-- is first in some account of # of the # situations on MNIST, of # on Fashion-MNIST and of # on CIFAR-10; leaving
select d as k, count(distinct iif(zeroth, situation, null)), case d when 1 then count(distinct situation) end from lean_ahead where fits = 1 group by d;
-- is first in some of #, # and #, beyond the interval in #, # and #.
select k, n from (
    select d as k, count(distinct iif(without, situation, null)) as n from lean_ahead where fits = 1 group by d union all
    select 3 + d, count(distinct iif(without and clear, situation, null)) from lean_ahead where fits = 1 group by d
);
-- forward passes need # KiB and fit, the last stage's backward pass, #, does, CSE-FSL's, #, does not, and in two parts, #, it does.
select nth(what, 'heron-head-8 none | exact none | cse_fsl none | cse_fsl accumulate:2') as k, kib from lean_step where data = 'cifar10';
-- A step of CSE-FSL needs # KiB, HERON's #. Checkpoints leave it at #,
select nth(what, 'cse_fsl none | heron-head-8 none | cse_fsl checkpoint') as k, kib from lean_step where data = 'mnist';
-- it needs #, in four #, less than
select nth(what, 'cse_fsl accumulate:2 | cse_fsl accumulate:4') as k, kib from lean_step where data = 'mnist';
-- less than forward passes of the whole mini-batch, with no multiply-accumulate more
select max(f.kib) < min(h.kib) from lean_step f join lean_step h using (data) where f.what = 'cse_fsl accumulate:4' and h.method = 'heron-head-8';
-- with no multiply-accumulate more, and the same
select max(step_macs) = min(step_macs) from lean_step where data = 'mnist' and method = 'cse_fsl' and client_memory <> 'checkpoint';
-- SFLV2 needs #, #, # and a third more operations, FedAvg #, #, #.
select nth(what, 'sflv2 none | sflv2 accumulate:2 | sflv2 accumulate:4 | fedavg none | fedavg accumulate:2 | fedavg accumulate:4') as k, kib
from lean_step where data = 'mnist';
-- takes # M multiply-accumulates a step, CSE-FSL #.
select nth(what, 'heron-head-8 none | cse_fsl none') as k, step_macs / 1e6 from lean_step where data = 'mnist';
-- | MNIST, test accuracy in %
select way, m, s from (
    select way, place, mean as m, sd as s from lean_table where d = 1 union all
    select way, place + 0.5, lacked_mean_percent, lacked_sd_percent from lean_rows where d = 1 and place in (16, 19)
) order by place;
-- from # of these on its 95 % t interval leaves out 0
select half_apart(1, 1, 3);
create view lean_apart as select *, nth(way, 'CSE-FSL, left out | CSE-FSL, uploads only | mixed, estimates | HERON, 8 directions | frozen client'
    || ' | mixed, last stage | CSE-FSL, all') as w from lean_rows where d = 1 and classes = 'apart';
-- three classes with them: # ± # % at 60 % apart, # on the three
select mean, sd, lacked_mean_percent from lean_apart where w = 1 and small = 6;
-- pass forward and upload, it is # ± #, and # ± # at 90 %. Mixed with estimates has # ± # and # ± #,
select w * 10 + small as k, mean, sd from lean_apart where w in (2, 3) and small > 3;
-- # (# to #) and # (# to #) points more: not told apart
select place as k, more, least, most from lean_against where d = 1 and one = 'mixed, estimates' and two = 'CSE-FSL, uploads only' and place in (16, 19);
-- not told apart by three seeds
select max(least) < 0 from lean_against where d = 1 and one = 'mixed, estimates' and two = 'CSE-FSL, uploads only' and place in (16, 19);
-- HERON with everybody has # ± # and # ± #, the frozen client # ± # and # ± #, so
select w * 10 + small as k, mean, sd from lean_apart where w in (4, 5) and small > 3;
-- do learn, with # directions a parameter
select max(directions_per_parameter) from lean_apart where w = 4;
-- last stage's backward pass fits** (# KiB). Mixed with it
select kib from lean_step where data = 'mnist' and what = 'exact none';
-- Mixed with it has # ± # and # ± # %, CSE-FSL with everybody # ± # and # ± #. Does
select w * 10 + small as k, mean, sd from lean_apart where w in (6, 7) and small > 3;
-- It is first in some account of # situations, beyond the interval in #;
select count(distinct iif(best = 'mixed, last stage', situation, null)), count(distinct iif(best = 'mixed, last stage' and clear, situation, null)) from lean_ahead where d = 1 and fits = 2;
-- it is # (# to #) and # (# to #) points ahead of mixing with estimates, # (# to #) and # (# to #) of an exact last
select nth(two, 'mixed, estimates | last stage exact') * 100 + place as k, more, least, most from lean_against
where d = 1 and one = 'mixed, last stage' and place in (16, 19);
-- three seeds do not tell these apart.
select max(least) < 0 from lean_against
where d = 1 and one = 'mixed, last stage' and place in (16, 19) and two in ('mixed, estimates', 'last stage exact');
-- FedAvg is first in some account of all # situations, since
select count(distinct iif(best = 'FedAvg, all', situation, null)) from lean_ahead where d = 1 and fits = 3;
-- sends # KiB up in 48 rounds, CSE-FSL # in 24
select nth(way, 'FedAvg, all | CSE-FSL, all') as k, bytes_up / 1024 from lean_rows where d = 1 and place = 16;
-- it is at 80 % after # virtual minutes, CSE-FSL after #. SFLV2
select nth(way, 'FedAvg, all | CSE-FSL, all') as k, minutes_to_high_mean from d_lean_virtual
where data = 'mnist' and classes = 'apart' and small = 6 and federation = 'phones' and uplink = 100000;
-- most accurate where no device is small, with # ± #.
select mean, sd from lean_rows where d = 1 and way = 'SFLV2, all' and place = 0;
-- SFLV2 is the most accurate where no device is small
select max(mean) = max(case way when 'SFLV2, all' then mean end) from lean_rows where d = 1 and place = 0;
-- costs CSE-FSL nothing (# ± # and # ± # %, all # ± #) and is quicker, as the rest is; nine of ten cost # points
select 1 + small as k, mean, sd from lean_rows where d = 1 and way = 'CSE-FSL, left out' and place in (3, 6) union all
select 8, mean, sd from lean_rows where d = 1 and way = 'CSE-FSL, all' and place = 6 union all
select 9, a.mean - b.mean, null from lean_rows a join lean_rows b using (d, place)
where d = 1 and a.way = 'CSE-FSL, all' and b.way = 'CSE-FSL, left out' and place = 9;
-- is then # points (# to #) ahead of it, and # (# to #) behind CSE-FSL in parts
select 1 as k, more, least, most from lean_against where d = 1 and place = 9 and one = 'HERON, 8 directions' and two = 'CSE-FSL, left out' union all
select 2, more, least, most from lean_against where d = 1 and place = 9 and one = 'CSE-FSL, all' and two = 'HERON, 8 directions';
-- all that take part in every step are worse than at 60 %: CSE-FSL # ± # %, mixed with the last stage # ± #.
select 8 - w as k, mean, sd from lean_apart where w in (6, 7) and small = 3;
-- Left out it has # ± #, and uploads alone, whose small clients do not move the client's part, # ± #.
select w as k, mean, sd from lean_apart where w in (1, 2) and small = 3;
-- are worse than at 60 %
select min(b.mean > a.mean) from lean_rows a join lean_rows b using (d, way) where d = 1 and a.place = 13 and b.place = 16 and a.way not like '%left out';
-- HERON #, mixed with estimates #, CSE-FSL in parts #, FedAvg #. Eight
select nth(way, 'HERON, 8 directions | mixed, estimates | CSE-FSL, all | FedAvg, all') as k, joules_mean from d_lean_virtual
where data = 'mnist' and classes = 'apart' and small = 6 and federation = 'sensors' and uplink = 1000000;
-- HERON with one direction has # ± # %, the frozen client # ± #; with eight directions and an estimated head # ± #; DeComFL # ± #
select nth(way, 'HERON, 1, estimated head | frozen client | HERON, 8, estimated head | DeComFL, 8 directions') as k, mean, sd
from lean_rows where d = 1 and place = 0;
-- after 24 rounds of # KiB up in all
select bytes_up / 1024 from lean_rows where d = 1 and place = 0 and way like 'DeComFL%';

-- A frozen client has # ± # % where it had # ± #, so
select d = 1 as k, mean, sd from lean_rows where way = 'frozen client' and place = 16 and d < 3;
-- | Fashion-MNIST, test accuracy in %
select way, mean, sd from lean_table where d = 2 order by place;
-- or mixed) is first in some account of # of # situations, beyond the interval in #. At 60
select count(distinct iif(zeroth, situation, null)), count(distinct situation), count(distinct iif(zeroth and clear, situation, null)) from lean_ahead where d = 2 and fits = 1;
-- At 60 % apart uploads alone have # ± # %, mixed with estimates # ± #, HERON with everybody # ± #, # points (# to #) ahead of the frozen client.
select k, mean, sd, most from (
    select nth(way, 'CSE-FSL, uploads only | mixed, estimates | HERON, 8 directions') as k, mean, sd, null as most from lean_rows where d = 2 and place = 16 union all
    select 4, more, least, most from lean_against where d = 2 and place = 16 and one = 'HERON, 8 directions' and two = 'frozen client'
) where k is not null;
-- Mixed with it is first in some account of # situations, beyond the interval in #; zeroth order in some of #, in #.
select count(distinct iif(best = 'mixed, last stage', situation, null)), count(distinct iif(best = 'mixed, last stage' and clear, situation, null)),
    count(distinct iif(zeroth, situation, null)), count(distinct iif(zeroth and clear, situation, null)) from lean_ahead where d = 2 and fits = 2;
-- FedAvg is first in some account of # situations, mixed with the last stage of #, zeroth order of #.
select count(distinct iif(best = 'FedAvg, all', situation, null)), count(distinct iif(best = 'mixed, last stage', situation, null)), count(distinct iif(zeroth, situation, null)) from lean_ahead where d = 2 and fits = 3;
-- CSE-FSL in two parts has # ± # %, SFLV2 # ± #, FedAvg # ± #.
select k, mean, sd from (
    select nth(way, 'CSE-FSL, all | SFLV2, all | FedAvg, all') as k, mean, sd from lean_rows where d = 2 and place = 16
) where k is not null;

-- | CIFAR-10, test accuracy in %
select way, mean, sd from lean_table where d = 3 order by place;
create view lean_cifar as select *, nth(way, 'CSE-FSL, all | frozen client | HERON, 8 directions | mixed, estimates | CSE-FSL, left out | mixed, last stage'
    || ' | last stage exact') as w from lean_rows where d = 3;
-- CSE-FSL has # ± # %, the frozen client # ± #, # points (# to #) less; HERON with eight directions # ± #, # (# to #) behind CSE-FSL and # (# to #) ahead of the frozen client.
select 10 * w as k, mean, sd, null from lean_cifar where w < 4 and place = 0 union all
select case when two = 'HERON, 8 directions' then 31 else 25 end, more, least, most from lean_against
where d = 3 and place = 0 and one = 'CSE-FSL, all' and two in ('frozen client', 'HERON, 8 directions') union all
select 32, more, least, most from lean_against where d = 3 and place = 0 and one = 'HERON, 8 directions' and two = 'frozen client';
-- fit.** Zeroth order is first in some account of # of # situations, beyond the interval in #; leaving small devices out in some of #, in #.
select count(distinct iif(zeroth, situation, null)), count(distinct situation), count(distinct iif(zeroth and clear, situation, null)),
    count(distinct iif(without, situation, null)), count(distinct iif(without and clear, situation, null)) from lean_ahead where d = 3 and fits = 1;
-- With nine of ten small mixed estimates have # ± # %, left out # ± #.
select w as k, mean, sd from lean_cifar where w in (4, 5) and place = 9;
-- fits.** Mixed with it is first in no account. At 90
select sum(best = 'mixed, last stage') = 0 from lean_ahead where d = 3 and fits = 2;
-- At 90 % of the same mix it has # ± # %, mixed with estimates # ± #, an exact last stage at all clients # ± #.
select case w when 6 then 1 when 4 then 2 when 7 then 3 end as k, mean, sd from lean_cifar where place = 9;
-- no way that takes all in is above # ± # %, CSE-FSL without the small ones has # ± #.
select k, mean, sd from (
    select 1 as k, mean, sd, row_number() over (order by mean desc) as n from lean_cifar where place = 16 and way not like '%left out' union all
    select 2, mean, sd, 1 from lean_cifar where place = 16 and w = 5
) where n = 1;
-- with # ± #, are # points (# to #) ahead of CSE-FSL with all.
select 1 as k, mean, sd, null from lean_cifar where place = 13 and w = 5 union all
select 2, more, least, most from lean_against where d = 3 and place = 13 and one = 'CSE-FSL, left out' and two = 'CSE-FSL, all';
-- is first in some account of # of # situations on MNIST, # on Fashion-MNIST and # on CIFAR-10, beyond the interval in #, # and #; leaving the small ones out in #, # and #, beyond the interval in #, # and #.
select k, n, o from (
    select d as k, count(distinct iif(best = 'mixed, last stage', situation, null)) as n, iif(d = 1, count(distinct situation), null) as o
    from lean_ahead where fits = 2 group by d union all
    select 3 + d, count(distinct iif(best = 'mixed, last stage' and clear, situation, null)), null from lean_ahead where fits = 2 group by d union all
    select 6 + d, count(distinct iif(without, situation, null)), null from lean_ahead where fits = 2 group by d union all
    select 9 + d, count(distinct iif(without and clear, situation, null)), null from lean_ahead where fits = 2 group by d
);
-- mixing with estimates is first in some account of #, # and #, beyond the interval in #.
select d as k, count(distinct iif(best = 'mixed, estimates', situation, null)) from lean_ahead where fits = 1 group by d union all
select 4, sum(best = 'mixed, estimates' and clear) from lean_ahead where fits = 1;
-- from steps of 1e-4 to 3e-3 its validation accuracy moves by less than one point
select max(chosen_by_percent) - min(chosen_by_percent) < 1 and count(*) = 4 from d_lean_steps
where data = 'mnist-0' and method = 'heron' and step not like 'local-1e-2%';
-- every best step has smaller and larger ones beside it, but for
select (select count(*) from d_lean_steps where best and at_edge <> '' and not (data = 'cifar10-0' and method = 'heron-8'))
    + (select count(*) from d_lean_fedavg_steps where best and at_edge <> '') = 0;
