-- page: analysis/results/scaling.md

create view strong as
select nth(method, 'fedavg | fedavg-cnn | heron | zo_hfl') as k, * from scaling where study = 'strong';
create view model as select system, abs(100 * error) as missed from scaling_model;
-- are # (FedAvg, softmax), # (FedAvg, CNN), # (HERON), # (ZO-HFL) times as fast
select k, speed_up from strong where system = 'local' and share = 'low' and ranks = 3;
-- One client rank gains nothing (#, #, #, #
select k, speed_up from strong where system = 'local' and share = 'low' and ranks = 2;
-- one client rank gains up to # times
select max(speed_up) from strong where system = 'local' and share = 'high' and ranks = 2 and k;
-- three ranks have # to # of one process's speed
select min(speed_up), max(speed_up) from strong where system = 'one-core' and share = 'low' and ranks = 3 and k;
-- behind links of 1 Gbit/s, # to # of it, behind 100 Mbit/s # to #
select min(speed_up), max(speed_up) from strong
where system in ('gigabit', 'megabit') and share = 'low' and ranks = 7 and k group by system order by system;
-- # to # s alone, # to # s for seven ranks
select min(start), max(start) from scaling where ranks in (1, 7) group by ranks order by ranks;
-- misses by # % in the median of # runs. It misses by # % without a simulated
select median(missed), count(*), median(case when system = 'local' then missed end) from model;
-- It predicts too short a round in # of the #, and
select sum(error < 0), count(*) from scaling_model;
-- fits HERON worst: `local` by # to # % too short.
select min(-100 * error), max(-100 * error) from scaling_model where system = 'local' and method = 'heron';
-- (`local`), at most by # %: HERON on seven
select max(missed) from model;
-- 100,000 clients, # s a round (CNN: #)
select nth(method, 'fedavg | fedavg-cnn') as k, packed from scaling_model_far where m = 100000 and client_ranks = 1024;
-- ZO-HFL gains as far, with # s at 1,024
select packed from scaling_model_far where method = 'zo_hfl' and m = 100000 and client_ranks = 1024;
-- by its server from about 4 client ranks on, at # s
select packed from scaling_model_far where method = 'heron' and m = 100000 and client_ranks = 16;
-- HERON is limited by its server from about 4 client ranks on
select count(distinct round(packed)) = 1 from scaling_model_far where method = 'heron' and m = 100000 and client_ranks in (16, 1024);
-- | softmax 784 x 10 | ms a round
select variant, ms, ratio, ratio_least, ratio_most, start_s, accuracy_percent from peers;
-- takes # ms a round, one process of ours #, two client ranks #. `python
select nth(variant, 'stacked torch loop, 1 thread | zofl_mpi, 1 process | zofl_mpi, 2 client ranks') as k, ms from peers;
-- A compiled round of FedAvg takes # ms
select ms from peers where variant = 'zofl_mpi, 1 process';
-- HERON's server as the limit from about 4 on.
select min("limit" = 'server') from scaling_model_far where method = 'heron';
