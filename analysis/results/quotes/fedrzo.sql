-- page: analysis/results/fedrzo.md

-- | | H = 1 | H = 5
with n(k, name) as (values (1, 'after 1,000 rounds, each eta'), (2, 'first evaluated round at H = 1''s last mean'),
    (3, 'local steps by then'))
select name, case k when 1 then last when 2 then reached_in_round else in_local_steps end as number,
    case k when 1 then last_sd end as sd
from n join b_fig1 where eta = 0.1 order by H;
-- The means for eta = 0.1, 0.01 and 0.001 agree to four digits.
select count(*) = 3 and count(distinct round(last, 4)) = 1 and max(last_sd) - min(last_sd) < 1e-4
    and count(distinct reached_in_round) = 1 and count(distinct in_local_steps) = 1 from b_fig1 group by H;
-- on test samples to # on average
select last from b_fig1_sum where reading = 'sum' and H = 1;
-- The mean descends: # -> # in 40 rounds
select first, last from b_fig1_sum where reading = 'mean' and H = 20;

-- | | step | nonsmooth objective |
with n(name, method, rectifier) as (values ('FedRZO, 1 direction', 'fedrzo', 10), ('FedRZO, 16 directions', 'fedrzo-16', 10),
    ('FedAvg, beta = 10', 'fedavg', 10), ('FedProx, beta = 10', 'fedprox', 10), ('FedMSPP, beta = 10', 'fedmspp', 10),
    ('Scaffnew, beta = 10, p = 0.1', 'scaffnew', 10), ('FedAvg, beta = 1', 'fedavg', 1), ('FedProx, beta = 1', 'fedprox', 1),
    ('FedMSPP, beta = 1', 'fedmspp', 1), ('Scaffnew, beta = 1, p = 0.1', 'scaffnew', 1))
select name, step, nonsmooth_mean, nonsmooth_sd, smooth_test_mean, accuracy_mean_percent, evaluations / 1e6
from n join b_methods using (method, rectifier) where best;
-- All send the same # MiB
select distinct bytes / 1048576.0 from b_methods;
-- 1e-5, which ends at #
select nonsmooth_mean from b_methods where method = 'fedrzo' and step = 1e-5;
-- so that any best one is at an edge): FedRZO #, FedAvg #
select nth(method, 'fedrzo | fedavg') as k, nonsmooth_mean from b_methods_cifar where best;

-- | hyper-parameters, test loss, 30 rounds | # | # ± # | # ± # | # ± # |
-- | rounds to H = 1's last value | | # | # | # | | seeds below H = 1 | | | # | # |
select avg(c4), group_concat(c5 || ' ' || c6), group_concat(c9, ' '), group_concat(case when c3 <> 'H = 1' then c8 end, ' ')
from b_fig2_txt where c1 = 'hyperparameter' and c2 = 'test_loss';
-- | fair classification, max_y f, 300 rounds | # | # ± # | # ± # | # ± # |
-- | rounds to H = 1's last value | | # | # | # | | seeds below H = 1 | | | # | # |
select avg(c4), group_concat(c5 || ' ' || c6), group_concat(c9, ' '), group_concat(case when c3 <> 'H = 1' then c8 end, ' ')
from b_fig2_txt where c1 = 'fair' and c2 = 'objective_exact';
-- the intervals of H = 1 and 5 do not overlap at the end; nor do those of H = 1 and 10.
select o.c5 + o.c6 < one.c5 - one.c6 from b_fig2_txt o join b_fig2_txt one using (c1, c2)
where c1 = 'hyperparameter' and one.c3 = 'H = 1' and o.c3 <> 'H = 1';
-- The worst class's test loss with H = 10 falls to # ± #
select c5, c6 from b_fig2_txt where c2 = 'test_worst_class_loss' and c3 = 'fair, H = 10';
-- classes' mean loss in its place ends at # ± #, lower on one seed of three
select c5, c6 from b_fig2_txt where c2 = 'test_worst_class_loss' and c3 = 'mean, H = 10';
-- lower on one seed of three: not told apart
select m.c8 = '1' and abs(f.c5 - m.c5) < m.c6 from b_fig2_txt m join b_fig2_txt f using (c2)
where m.c3 = 'mean, H = 10' and f.c3 = 'fair, H = 10';

-- | | K 2^8..2^16 |
with n(name, c1, K, m) as (values ('upper level (nn)', 'upper level', '3/4', '3/4'), ('Local SGD', 'Local SGD', '3/4', '7/4'),
    ('FedAC-I', 'FedAC-I', '3/4', '13/12'), ('LFD, T of Theorem 1', 'LFD, T of Thm 1', '11/12', '11/12'),
    ('LFD, T of Algorithm 3', 'LFD, T of Alg. 3', '11/12', '11/12'))
select name, c2, c3, K, c5, m from n join b_complexity_txt using (c1) where cells = 6;

-- at a kink grows as eta^#
select distinct slope_fitted from b_theory where line = 'f^η - f at a kink';
-- the second derivative jumps as eta^#
select distinct slope_fitted from b_theory where line = '|∇f^η - ∇f|';
-- only penalised as eta^#
select distinct slope_fitted from b_theory where line = 'set penalised';
-- falls as K^# (quadratics) and K^# (max of affine)
select distinct nth(line, 'quadratic | max of affine') as k, slope_fitted from b_theory;
-- at equal K as m^#, at equal m K as m^#
select distinct nth(line, 'K = 2048 | m K = 16384') as k, slope_fitted from b_theory;

-- | lower solver |
select replace(solver, 'the paper', 'paper'), lower_error_relative, distance_to_solution_relative, objective_gap_relative
from b_bias;
-- `lower_residual` shows the bias (# against #)
select nth(solver, 'Local SGD, H = T/m | Local SGD, H = 1') as k, lower_residual from b_bias;

create view ends as select * from b_fednest where best;
-- | | | step | first | last |
with n(problem, name) as (values ('bilevel_bowls', 'quadratic bowls'), ('saddle', 'minimax, known saddle'),
    ('hyperparameter', 'regularisers, MNIST'), ('cvar', '`cvar`'), ('shares', '`shares`'))
select name || ' | ' || case method when 'fedrzo' then 'FedRZO' else 'FedNest' end, step, first_mean, measure_mean, measure_sd,
    distance_mean, bytes / 1024.0, evaluations / 1e6
from n join ends using (problem);
-- on the bowls # KiB in place of # and # in place of #
select f.bytes_until / 1024, z.bytes_until / 1024, f.evaluations_until / 1e6, z.evaluations_until / 1e6
from ends f join ends z using (problem) where problem = 'bilevel_bowls' and f.method = 'fednest' and z.method = 'fedrzo';
-- on the saddle # KiB in place of # and # in place of #
select f.bytes_until / 1024, z.bytes_until / 1024, f.evaluations_until / 1e6, z.evaluations_until / 1e6
from ends f join ends z using (problem) where problem = 'saddle' and f.method = 'fednest' and z.method = 'fedrzo';
-- On MNIST both end at the same test loss
select abs(f.measure_mean - z.measure_mean) < min(f.measure_sd, z.measure_sd) from ends f join ends z using (problem)
where problem = 'hyperparameter' and f.method = 'fednest' and z.method = 'fedrzo';
-- F - F* is #, # and # on the three seeds after 500 rounds, where it began near #
select by_seed, first_mean from ends where problem = 'cvar' and method = 'fedrzo';
