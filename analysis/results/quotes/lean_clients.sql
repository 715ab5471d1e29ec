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
-- needs # KiB, HERON's #. In
with q(k, c1) as (
select nth(what, 'cse_fsl none | heron-head-8 none | cse_fsl checkpoint') as k, kib from lean_step where data = 'mnist')
select k, c1 from q where k in (1, 2);
-- needs #, in four #, with
select nth(what, 'cse_fsl accumulate:2 | cse_fsl accumulate:4') as k, kib from lean_step where data = 'mnist';
-- takes # M multiply-accumulates a step, CSE-FSL #.
select nth(what, 'heron-head-8 none | cse_fsl none') as k, step_macs / 1e6 from lean_step where data = 'mnist';
-- | MNIST, test accuracy in %
select way, m, s from (
    select way, place, mean as m, sd as s from lean_table where d = 1 union all
    select way, place + 0.5, lacked_mean_percent, lacked_sd_percent from lean_rows where d = 1 and place in (16, 19)
) where way not like 'DeComFL%' and way not like '%estimated head' and way not like 'HO-SFL%' and way not in ('SFLV2, left out', 'FedAvg, left out')
order by place;
-- From # on (bold)
select half_apart(1, 1, 3);
create view lean_apart as select *, nth(way, 'CSE-FSL, left out | CSE-FSL, uploads only | mixed, estimates | HERON, 8 directions | frozen client'
    || ' | mixed, last stage | CSE-FSL, all') as w from lean_rows where d = 1 and classes = 'apart';
-- them: # ± # %
with q(c0, c1, c2) as (
select mean, sd, lacked_mean_percent from lean_apart where w = 1 and small = 6)
select c0, c1 from q;
-- estimates has # ± #,
with q(k, c1, c2) as (
select w * 10 + small as k, mean, sd from lean_apart where w in (2, 3) and small > 3)
select k, c1, c2 from q where k in (36.0);
-- estimates has 83.3 ± 3.3, # (# to #) points more than uploads
with q(k, c1, c2, c3) as (
select place as k, more, least, most from lean_against where d = 1 and one = 'mixed, estimates' and two = 'CSE-FSL, uploads only' and place in (16, 19))
select k, c1, c2, c3 from q where k in (16.0);
-- client # ± #, so
with q(k, c1, c2) as (
select w * 10 + small as k, mean, sd from lean_apart where w in (4, 5) and small > 3)
select k, c1, c2 from q where k in (56.0);
-- do learn, with # directions a parameter
select max(directions_per_parameter) from lean_apart where w = 4;
-- last stage's backward pass fits** (# KiB). Mixed with it
select kib from lean_step where data = 'mnist' and what = 'exact none';
-- it has # ± # %, CSE-FSL
with q(k, c1, c2) as (
select w * 10 + small as k, mean, sd from lean_apart where w in (6, 7) and small > 3)
select k, c1, c2 from q where k in (66.0);
-- In each of the # situations FedAvg is first
select count(distinct iif(best = 'FedAvg, all', situation, null)) from lean_ahead where d = 1 and fits = 3;
-- sends # KiB up, CSE-FSL #. -
select nth(way, 'FedAvg, all | CSE-FSL, all') as k, bytes_up / 1024 from lean_rows where d = 1 and place = 16;
-- everybody is # points (# to #) ahead of CSE-FSL without these nine, and # (# to #) behind CSE-FSL with
select 1 as k, more, least, most from lean_against where d = 1 and place = 9 and one = 'HERON, 8 directions' and two = 'CSE-FSL, left out' union all
select 2, more, least, most from lean_against where d = 1 and place = 9 and one = 'CSE-FSL, all' and two = 'HERON, 8 directions';
-- HERON #, mixed with estimates #, CSE-FSL in parts #, FedAvg #. -
select nth(way, 'HERON, 8 directions | mixed, estimates | CSE-FSL, all | FedAvg, all') as k, joules_mean from d_lean_virtual
where data = 'mnist' and classes = 'apart' and small = 6 and federation = 'sensors' and uplink = 1000000;
-- client: # ± # %, the frozen client # ± #. Eight directions with an estimated head have # ± #, with an exact one # ± #. ![Accuracy
with q(k, c1, c2) as (
select nth(way, 'HERON, 1, estimated head | frozen client | HERON, 8, estimated head | HERON, 8 directions') as k, mean, sd
from lean_rows where d = 1 and place = 0)
select k, c1, c2 from q;
-- | Fashion-MNIST, test accuracy in %
select way, mean, sd from lean_table where d = 2 and place in (0, 6, 16, 19) and way in ('frozen client', 'HERON, 8 directions',
    'CSE-FSL, all', 'FedAvg, all', 'CSE-FSL, left out', 'CSE-FSL, uploads only', 'mixed, estimates', 'mixed, last stage') order by place;
-- account of # of # situations; in # of these its lead has an interval above zero. At
select count(distinct iif(zeroth, situation, null)), count(distinct situation), count(distinct iif(zeroth and clear, situation, null)) from lean_ahead where d = 2 and fits = 1;
-- HERON is # points (# to #) ahead of
with q(k, c1, c2, c3) as (
select k, mean, sd, most from (
    select nth(way, 'CSE-FSL, uploads only | mixed, estimates | HERON, 8 directions') as k, mean, sd, null as most from lean_rows where d = 2 and place = 16 union all
    select 4, more, least, most from lean_against where d = 2 and place = 16 and one = 'HERON, 8 directions' and two = 'frozen client'
) where k is not null)
select k, c1, c2, c3 from q where k in (4);
-- | CIFAR-10, test accuracy in %
select way, mean, sd from lean_table where d = 3 and place in (0, 6, 16, 19) and way in ('frozen client', 'HERON, 8 directions',
    'CSE-FSL, all', 'FedAvg, all', 'CSE-FSL, left out', 'CSE-FSL, uploads only', 'mixed, estimates', 'mixed, last stage') order by place;
create view lean_cifar as select *, nth(way, 'CSE-FSL, all | frozen client | HERON, 8 directions | mixed, estimates | CSE-FSL, left out | mixed, last stage'
    || ' | last stage exact') as w from lean_rows where d = 3;
-- HERON is # (# to #) behind CSE-FSL and # (# to #) ahead
with q(k, c1, c2, c3) as (
select 10 * w as k, mean, sd, null from lean_cifar where w < 4 and place = 0 union all
select case when two = 'HERON, 8 directions' then 31 else 25 end, more, least, most from lean_against
where d = 3 and place = 0 and one = 'CSE-FSL, all' and two in ('frozen client', 'HERON, 8 directions') union all
select 32, more, least, most from lean_against where d = 3 and place = 0 and one = 'HERON, 8 directions' and two = 'frozen client')
select k, c1, c2, c3 from q where k in (31, 32);
-- zeroth order is nowhere ahead of the best other way beyond a 95 % t interval. That holds on all three data sets
select sum(zeroth and clear) = 0 and count(distinct d) = 3 from lean_ahead;
-- ahead of the frozen client. Zeroth order has the highest mean in some account of # of # situations; in # of these
select count(distinct iif(zeroth, situation, null)), count(distinct situation), count(distinct iif(zeroth and clear, situation, null))
from lean_ahead where d = 3 and fits = 1;
-- Uploads alone have # ± #.
select mean, sd from lean_apart where w = 2 and small = 6;
-- HERON with everybody has # ± #, the
select mean, sd from lean_apart where w = 4 and small = 6;
-- CSE-FSL with everybody # ± #.
select mean, sd from lean_apart where w = 7 and small = 6;
-- with no multiply-accumulate more and the same gradient
select max(step_macs) = min(step_macs) from lean_step where data = 'mnist' and method = 'cse_fsl' and client_memory <> 'checkpoint';
-- the same mix CSE-FSL is # points (# to #) ahead of the frozen client
select more, least, most from lean_against where d = 3 and place = 0 and one = 'CSE-FSL, all' and two = 'frozen client';
-- On MNIST and Fashion-MNIST it is ahead of leaving small devices out where six or nine of ten are small and own three classes.
select min(h.mean - o.mean > half_apart(h.sd, o.sd, 3)) from lean_rows h join lean_rows o using (d, place)
where d in (1, 2) and place in (16, 19) and h.way = 'HERON, 8 directions' and o.way like '%, left out';
-- nine of ten cost # points
select a.mean - b.mean from lean_rows a join lean_rows b using (d) where d = 1 and a.way = 'CSE-FSL, all' and a.place = 0 and b.way = 'CSE-FSL, left out' and b.place = 9;
-- Forward passes need # KiB, the last stage's backward pass #, CSE-FSL's #, in two parts #.
select nth(what, 'heron-head-8 none | exact none | cse_fsl none | cse_fsl accumulate:2') as k, kib from lean_step where data = 'cifar10';
