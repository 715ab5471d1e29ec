-- page: analysis/results/zo_hfl.md
create view table1 as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, accuracy_mean_percent - paper_percent as above from a_table1;
create view less_server as
select max(abs(z.mean - s.mean)) as points from table1 z join table1 s using (data, cell)
where z.method = 'zo_hfl' and s.method = 'server_sgd';

-- | | MNIST 1000, 90 %
with n(method, name) as (values ('fedavg', 'FedAvg'), ('fedprox', 'FedProx'), ('scaffold', 'SCAFFOLD'),
    ('zo_hfl', 'ZO-HFL'), ('server_sgd', 'server SGD'), ('fedavg+server', 'FedAvg + ZO-HFL''s server step'))
select name, accuracy_mean_percent, accuracy_sd_percent, paper_percent from n join a_table1 t using (method) order by t.rowid;

-- by # to # points where clients are alike
select min(above), max(above) from table1 where cell = 'a1000-b0.9' and method in ('fedavg', 'fedprox');
-- by # to # in the most heterogeneous cell
select min(above), max(above) from table1 where cell = 'a0.1-b0.1' and method in ('fedavg', 'fedprox');
-- there and with a spread of # to # points over seeds
select min(sd), max(sd) from table1 where cell = 'a0.1-b0.1' and method in ('fedavg', 'fedprox');
-- that they fall to # % is not
select paper_percent from a_table1 where data = 'mnist' and cell = 'a0.1-b0.1' and method = 'fedavg';
-- where the paper prints # %
select paper_percent from a_table1 where data = 'mnist' and cell = 'a0.1-b0.1' and method = 'fedavg';
-- on MNIST in two cells (within # points)
select max(abs(above)) from table1 where data = 'mnist' and cell <> 'a0.1-b0.1' and method = 'scaffold';
-- in the others it is # to # points above the printed number
select min(above), max(above) from table1 where method = 'scaffold' and (data <> 'mnist' or cell = 'a0.1-b0.1');
-- with the printed steps: # % on MNIST and # % on Fashion-MNIST in all cells
select min(mean) from table1 where method = 'zo_hfl' group by data order by data desc;
-- in all cells, 11 to 20 points
select count(distinct round(mean)) = 1 from table1 where method = 'zo_hfl' group by data;
-- in all cells, # to # points below the printed numbers
select -max(above), -min(above) from table1 where method = 'zo_hfl';
-- the same mini-batches) to within # points
select ceil(100 * points) / 100 from less_server;

-- gamma_r sum to # over 500 rounds
with recursive r(r) as (values (1) union all select r + 1 from r where r < 500) select sum(0.01 / sqrt(r)) from r;
-- ZO-HFL reaches # % in the cell (0.1, 10 %) on seed 1
select accuracy_mean_percent from a_tuned where method = 'zo_hfl' and step = 'local-0.001 server-0.1' and seeds = 1;
-- the server alone reaches # % there
select accuracy_mean_percent from a_tuned where method = 'server_sgd' and step = 'server-0.1' and seeds = 1;
-- SCAFFOLD ends at # ± # %, FedAvg + server at # ± #, the server alone at # ± #, ZO-HFL at # ± #, FedAvg at # ± #,
-- FedProx at # ± #.
select nth(method, 'scaffold | fedavg+server | server_sgd | zo_hfl | fedavg | fedprox') as k, accuracy_mean_percent, accuracy_sd_percent
from a_tuned where best;
-- ZO-HFL and FedAvg + server are best at the smallest local step that was tried, 0.0001
select group_concat(method || ' ' || step) = 'zo_hfl local-0.0001 server-1,fedavg+server local-0.0001 server-1'
from (select * from a_tuned where at_edge <> '' order by nth(method, 'zo_hfl | fedavg+server'));
-- 0.001, 0.003, 0.01 ZO-HFL ends at #, #, # %, FedAvg + server at #, #, #.
select nth(method, 'zo_hfl | fedavg+server') as k, accuracy_mean_percent from a_tuned
where seeds = 1 and nth(step, 'local-0.001 server-1 | local-0.003 server-1 | local-0.01 server-1')
order by after(step, 'local-');
-- FedAdagrad ends at # ± # %, FedYogi at # ± #, FedAdam at # ± #, FedAvgM at # ± #, FedAvg with a tuned server step at # ± #
select nth(method, 'FedAdagrad | FedYogi | FedAdam | FedAvgM | fedavg') as k, accuracy_mean_percent, accuracy_sd_percent
from a_rules where best;
-- standardised pixels bring ZO-HFL to # %
select accuracy_mean_percent from a_readings where reading = 'pixels-standardize' and method = 'zo_hfl';
-- (mean distance # points over ZO-HFL and FedAvg; the default #)
select nth(reading, 'pixels-standardize | default') as k, avg(abs(difference_percent)) from a_readings group by reading;
-- move ZO-HFL by less than 0.2 points
select max(abs(t.accuracy_mean_percent - d.accuracy_mean_percent)) < 0.2 from a_readings t join a_readings d using (method)
where method = 'zo_hfl' and d.reading = 'default'
    and nth(t.reading, 'batch-1 | batch-32 | batch-256 | mu-0.1 | mu-10 | lam-0.1 | tau-10');
-- lambda of 10 by # downwards
select d.accuracy_mean_percent - t.accuracy_mean_percent from a_readings t join a_readings d using (method)
where method = 'zo_hfl' and d.reading = 'default' and t.reading = 'lam-10';
-- No reading brings FedAvg below # %
select floor(min(accuracy_mean_percent)) from a_readings where method = 'fedavg';
-- standardised pixels bring ZO-HFL from # to # % (printed #; mean distance with FedAvg # points, the default #)
select group_concat(accuracy_mean_percent, ' '), max(paper_percent),
    (select avg(abs(difference_percent)) from a_readings_iid where reading = 'pixels-standardize'),
    (select avg(abs(difference_percent)) from a_readings_iid where reading = 'default')
from a_readings_iid where method = 'zo_hfl' and reading in ('default', 'pixels-standardize');
-- nothing else moves ZO-HFL by more than 0.8 points
select max(abs(t.accuracy_mean_percent - d.accuracy_mean_percent)) < 0.8 from a_readings_iid t join a_readings_iid d using (method)
where method = 'zo_hfl' and d.reading = 'default'
    and nth(t.reading, 'batch-1 | batch-32 | batch-256 | mu-0.1 | mu-10 | lam-0.1 | lam-10 | tau-10');
-- no reading FedAvg, at # to # %, nearer to the printed # % than #
select min(accuracy_mean_percent), max(accuracy_mean_percent), max(paper_percent), min(difference_percent)
from a_readings_iid where method = 'fedavg';
-- FedAvg ends at # ± # %, FedProx at # ± #, SCAFFOLD at # ± #, FedAvg + server at # ± #; the server alone at # ± #,
-- ZO-HFL at # ± #. ZO-HFL is again
select nth(method, 'fedavg | fedprox | scaffold | fedavg+server | server_sgd | zo_hfl') as k, accuracy_mean_percent, accuracy_sd_percent
from a_tuned_iid where best;
-- best at its smallest local step, 0.0003, where it is the server alone
select group_concat(method || ' ' || step) = 'zo_hfl local-0.0003 server-1' from a_tuned_iid where at_edge <> '';
-- with steps of 0.001, 0.003, 0.01 it ends at #, #, #. (Chosen
select accuracy_mean_percent from a_tuned_iid
where method = 'zo_hfl' and seeds = 1 and step in ('local-0.001 server-1', 'local-0.003 server-1', 'local-0.01 server-1')
order by after(step, 'local-');

-- ZO-HFL ends at # ± # %, the server alone at # ± #, FedAvg, whose clients compute gradients, at # ± #
select nth(method, 'zo_hfl | server_sgd | fedavg') as k, accuracy_mean_percent, accuracy_sd_percent from a_share where best;
-- every best step has smaller and larger ones beside it
select count(*) = 3 from a_share where best and coalesce(at_edge, '') = '';
-- with the printed lambda = 1 ZO-HFL ends at # ± #
select accuracy_mean_percent, accuracy_sd_percent from a_share where method = 'zo_hfl' and step like 'lam-1 %' and seeds = 3;
-- more than half of the gap
select (z.accuracy_mean_percent - s.accuracy_mean_percent) / (f.accuracy_mean_percent - s.accuracy_mean_percent) > 0.5
from a_share z, a_share s, a_share f
where z.best and s.best and f.best and z.method = 'zo_hfl' and s.method = 'server_sgd' and f.method = 'fedavg';

create view shares as select z.*, z.gain_mean - half(z.gain_sd, z.seeds) as least, z.gain_mean + half(z.gain_sd, z.seeds) as most, s.accuracy_mean_percent as server_mean, s.accuracy_sd_percent as server_sd,
    f.accuracy_mean_percent as fedavg_mean, f.accuracy_sd_percent as fedavg_sd,
    s.accuracy_by_seed_percent as server_by_seed, z.lacks = 3 as lacking,
    printf('%g %%, n = %g', 100 * z.share, z.n) || iif(z.lacks > 0, ', lacks 3 classes', '') as label
from a_shares z join a_shares s using (share, n, lacks) join a_shares f using (share, n, lacks)
where z.best and s.best and f.best and z.method = 'zo_hfl' and s.method = 'server_sgd' and f.method = 'fedavg';
-- | server's data | ZO-HFL | server alone |
select label, accuracy_mean_percent, accuracy_sd_percent, server_mean, server_sd, fedavg_mean, fedavg_sd, gain_mean, least, most, seeds
from shares;
-- ZO-HFL is ahead by # points (95 % t interval # to #, n = #) and closes # % of the gap to FedAvg
select gain_mean, least, most, seeds, 100 * gain_mean / (fedavg_mean - server_mean) from shares
where lacking and share = 0.01 and n = 170;
-- with 0.1 % ZO-HFL is ahead by # points (# to #), with 10 % by # (# to #), with 30 %, [A]'s own share, by # (# to #);
select gain_mean, least, most from shares where lacking and share <> 0.01 order by share;
-- with all pixels and 1 % by # (# to #), though # directions
select gain_mean, least, most, directions_per_parameter from shares where lacking and n = 7840;
-- ahead in each seed, by # points with 54 samples and n = 170 (# to #, five seeds), by # with n = 850 (# to #) and by # with n = 7,840 (# to #)
select gain_mean, least, most from shares where share = 0.001 and not lacking order by n;
-- five seeds), by
select seeds = 5 from shares where share = 0.001 and n = 170 and not lacking;
-- Three seeds do not tell the last two from 0
select max(least < 0) and max(seeds) = 3 from shares where share = 0.001 and n > 170;
-- at # directions per parameter. Three seeds
select directions_per_parameter from shares where share = 0.001 and n = 7840;
-- with n = 7,840 and 1 % the best lambda is #)
select after(step, 'lam-') from shares where n = 7840 and share = 0.01 and not lacking;
-- ahead in each seed, by
select min(seeds_ahead = seeds) from shares where share = 0.001;

-- more than a few samples: # with 0.1 %, # with 1 %, # and # with 10 and 30 %
select after(step, 'lam-') from shares where n = 170 and not lacking order by share;
-- where the server lacks classes #, #, # and #
select after(step, 'lam-') from shares where n = 170 and lacking order by share;
-- Its clients send # and # bytes in the run with n = 170 and 850, # with n = 7,840, ZO-HFL's #.
select avg(case n when 170 then f.bytes_up end), avg(case n when 850 then f.bytes_up end), avg(case n when 7840 then f.bytes_up end),
    max(z.bytes_up) from a_shares z join a_shares f using (share, n)
where z.best and f.best and z.method = 'zo_hfl' and f.method = 'fedavg';
-- tried in two rows, are within 0.2 points of it
select count(*) = 4 and max(abs(o.accuracy_mean_percent - f.accuracy_mean_percent)) < 0.2
from a_shares o join a_shares f using (share, n, lacks)
where o.best and f.best and o.method in ('scaffold', 'fedavg+server') and f.method = 'fedavg';
-- no gain's interval lies above 0
select min(least <= 0) from shares where share >= 0.01 and not lacking;

-- ends at #, #, # nat for tau = 5, 20, 50
select c4 from a_fig2_txt where c1 = 'fashion-mnist' and c2 = 'a1000-b0.9' and c3 in ('5', '20', '50');
-- at #, #, # in the second
select c4 from a_fig2_txt where c1 = 'fashion-mnist' and c2 = 'a1-b0.5' and c3 in ('5', '20', '50');
-- at #, #, # in the third
select c4 from a_fig2_txt where c1 = 'fashion-mnist' and c2 = 'a0.1-b0.1' and c3 in ('5', '20', '50');
-- deviations over seeds # to #
select min(c5), max(c5) from a_fig2_txt where c1 = 'fashion-mnist';
-- #, #, # for mu = 0.1, 1, 10
select c4 from a_fig2_mu_txt where c1 = 'fashion-mnist' and c2 = 'a0.1-b0.1' and c3 in ('0.1', '1', '10');

create view personal as select rowid as row, *, personal_mean_percent as mean, cell = 'a0.1-b0.1' as third from a_personal;
create view apart as
select o.row, o.steps, o.data, o.cell, o.third, o.method, o.mean - z.mean as ahead, o.mean - f.mean as ahead_of_fedavg
from personal o join personal z using (steps, data, cell) join personal f using (steps, data, cell)
where z.method = 'zo_hfl' and f.method = 'fedavg' and o.steps in ('printed', 'tuned');

-- | | MNIST 1000, 90 %
with n(method, name) as (values ('fedavg', 'FedAvg, fine-tuned, '), ('fedprox', 'FedProx, fine-tuned, '),
    ('scaffold', 'SCAFFOLD, fine-tuned, '), ('zo_hfl', 'ZO-HFL, '), ('server_sgd', 'server SGD, fine-tuned, '),
    ('ditto', 'Ditto, '), ('pfedme', 'pFedMe, '), ('alone', 'x_0, fine-tuned, '))
select name || steps, mean, personal_sd_percent from n join personal using (method)
where steps in ('printed', 'tuned') order by row;
-- | | MNIST 1000, 90 %
select '*ZO-HFL less FedAvg, ' || steps || '*', less_fedavg_mean, less_fedavg_sd, seeds_ahead_of_fedavg, seeds
from personal where method = 'zo_hfl' and steps in ('printed', 'tuned') order by row;
-- in every cell and on every seed, by # to # points
select min(ahead), max(ahead) from apart where steps = 'printed' and method = 'fedavg';
-- ZO-HFL is behind FedAvg with fine-tuning** in every cell and on every seed
select max(seeds_ahead_of_fedavg) = 0 from personal where steps = 'printed' and method = 'zo_hfl';
-- fine-tuned (means within # points), and only # to # points above
select ceil(100 * (select max(abs(ahead)) from apart where steps = 'printed' and method = 'server_sgd')) / 100,
    -max(ahead), -min(ahead) from apart where steps = 'printed' and method = 'alone';
-- by # and # points on MNIST, by # and # on Fashion-MNIST
select ahead from apart where steps = 'tuned' and method = 'fedavg' and not third order by row;
-- and in between (1, 50 %)**, on every seed
select max(seeds_ahead_of_fedavg) = 0 from personal where steps = 'tuned' and method = 'zo_hfl' and not third;
-- seed by seed # points on MNIST (# to #), ahead on # of # seeds, and # on Fashion-MNIST (# to #), ahead on # of #
select less_fedavg_mean, less_fedavg_mean - half(less_fedavg_sd, seeds), less_fedavg_mean + half(less_fedavg_sd, seeds), seeds_ahead_of_fedavg, seeds from personal
where steps = 'tuned' and method = 'zo_hfl' and third order by row;
-- is # to # points ahead of ZO-HFL in the first two cells and within # in
select min(ahead), max(ahead), ceil(100 * (select max(abs(ahead)) from apart
    where steps = 'tuned' and method = 'server_sgd' and third)) / 100
from apart where steps = 'tuned' and method = 'server_sgd' and not third;
-- Ditto is ahead of ZO-HFL by # to # points, in
select min(ahead), max(ahead) from apart where steps = 'tuned' and method = 'ditto';
-- it is ahead by # and # points in the third cell
select ahead_of_fedavg from apart where steps = 'tuned' and method = 'ditto' and third order by row;
-- elsewhere the two are within #.
select ceil(10 * max(abs(ahead_of_fedavg))) / 10 from apart where steps = 'tuned' and method = 'ditto' and not third;
-- on all test samples ZO-HFL's has # and # %, FedAvg's # and #
select nth(method, 'zo_hfl | fedavg') as k, global_mean_percent from personal where steps = 'tuned' and third order by row;
-- is #, #, # in the three cells on MNIST and #, #, # on Fashion-MNIST
select after(step, 'local-') from personal where steps = 'tried' and best and method = 'fedavg' order by row;
-- the third cell's steps it has # % in the first on MNIST's validation samples, with its own #
select first.chosen_by_percent from personal first join personal best using (steps, data, method)
where steps = 'tried' and data = 'mnist' and method = 'fedavg' and first.cell = 'a1000-b0.9' and best.best
    and best.cell in ('a0.1-b0.1', 'a1000-b0.9') and first.step = best.step order by best.third desc;
-- fine-tuning by # and # points in the third cell, behind
select ahead_of_fedavg from apart where steps = 'tuned' and method = 'pfedme' and third order by row;
-- behind by # to # in the others. Its best
select -max(ahead_of_fedavg), -min(ahead_of_fedavg) from apart where steps = 'tuned' and method = 'pfedme' and not third;
-- in the third on MNIST is # with lambda = #, beyond
select after(step, 'local-'), after(step, 'lam-') from personal
where steps = 'tried' and best and method = 'pfedme' and data = 'mnist' and third;
-- beyond 2/lambda
select after(step, 'local-') > 2 / after(step, 'lam-') from personal
where steps = 'tried' and best and method = 'pfedme' and data = 'mnist' and third;

create view cifar as
select *, accuracy_mean_percent as mean, paper_percent - accuracy_mean_percent as below from a_table1_cifar;
-- | model, cell |
select problem || replace(replace(cell, 'a', ', '), '-b', ', '), accuracy_mean_percent, accuracy_sd_percent, paper_percent
from a_table1_cifar order by problem, cell, nth(method, 'fedavg | fedprox | scaffold | zo_hfl | server_sgd | fedavg+server');
-- near the printed # to # %: a linear model of the pixels ends at # %, of the random features at # %
select min(paper_percent), max(paper_percent), max(case when problem = 'softmax' and method = 'fedavg' then mean end),
    max(case when problem = 'features' and method = 'fedavg' then mean end)
from cifar where cell = 'a1000-b0.9';
-- (# and # points below them, ± #) and # and # below in the third, SCAFFOLD # and # below
select nth(method || ' ' || cell, 'fedavg a1-b0.5 | fedprox a1-b0.5 | fedavg a0.1-b0.1 | fedprox a0.1-b0.1 | scaffold a1-b0.5 | scaffold a0.1-b0.1') as k,
    below, case when method = 'fedprox' and cell = 'a1-b0.5' then
        (select accuracy_sd_percent from cifar where problem = 'softmax' and method = 'fedavg' and cell = 'a1-b0.5') end
from cifar where problem = 'softmax';
-- (# against #), and there the server alone, which asks no client, has #
select nth(method, 'zo_hfl | fedavg | server_sgd') as k, mean from cifar where problem = 'softmax' and cell = 'a0.1-b0.1';
-- The printed ZO-HFL, # and # %
select paper_percent from cifar where problem = 'softmax' and method = 'zo_hfl' and cell <> 'a1000-b0.9';
-- `a_shares` (# runs) | the same over shares
select sum(seeds) from a_shares;
-- of the gap is closed by # bytes up, FedAvg's are #. ZO-HFL
select nth(method, 'zo_hfl | fedavg') as k, bytes_up from a_shares where share = 0.001 and n = 170 and lacks = 0 and best;
