-- page: analysis/results/README.md

-- most unequal cell: SCAFFOLD | # ± # % (#) |
select accuracy_mean_percent, accuracy_sd_percent, paper_percent from a_table1
where data = 'mnist' and cell = 'a0.1-b0.1' and method = 'scaffold';
-- | the same cell: ZO-HFL; the server alone | # ± # % (#); # ± # |
select nth(method, 'zo_hfl | server_sgd') as k, accuracy_mean_percent, accuracy_sd_percent, paper_percent
from a_table1 where data = 'mnist' and cell = 'a0.1-b0.1';
-- H = 1; 20 | # ± #; # ± # |
select last, last_sd from b_fig1 where eta = 0.1 and H in (1, 20) order by H;
-- FedRZO, 16 directions; FedAvg | # ± #; # ± # |
select nth(method, 'fedrzo-16 | fedavg') as k, nonsmooth_mean, nonsmooth_sd from b_methods where rectifier = 10 and best;
-- after 30 rounds, H = 10 (± half a t interval) | #; # ± # |
select avg(c4), max(case c3 when 'H = 10' then c5 end), max(case c3 when 'H = 10' then c6 end)
from b_fig2_txt where c1 = 'hyperparameter' and c2 = 'test_loss';
-- CIFAR-10: HERON; CSE-FSL; SFLV2 | # ± # %; # ± #; # ± # |
select nth(method, 'heron | cse_fsl | sflv2') as k, accuracy_mean_percent, accuracy_sd_percent from c_fig2 where setting = 'iid';
-- HERON; CSE-FSL; SFLV1 and SFLV2 | # MiB; #; # |
select nth(method, 'heron | cse_fsl | sflv2') as k, client_peak_bytes / 1048576 from c_table2;
-- E2E, perplexity: HERON; frozen client; SplitLoRA | #; #; # |
select nth(method, 'heron | heron-frozen | splitlora') as k, validation_perplexity_mean from c_fig5 where start = 'pretrained';
-- GiB of SFLV2; G multiply-accumulates of HERON's step | # (#); # (#) |
select s.c4, s.c3, h.c9, h.c8 from c_table2_txt h join c_table2_txt s using (cells)
where cells = 9 and h.c1 = 'HERON' and s.c1 = 'SFLV2';
-- two client ranks beside one process: ZO-HFL; FedAvg's CNN | # times; # |
select nth(method, 'zo_hfl | fedavg-cnn') as k, speed_up from scaling
where system = 'local' and share = 'low' and study = 'strong' and ranks = 3;
-- FedJAX; pfl (2 processes); stacked torch loop; here; on 2 client ranks | # ms; #; #; #; # |
select 1 as k, min(ms) from peers where variant like 'FedJAX%' union all
select 2, min(ms) from peers where variant like 'pfl%' union all
select 3, min(ms) from peers where variant like 'stacked%' union all
select 4, ms from peers where variant = 'zofl_mpi, 1 process' union all
select 5, ms from peers where variant = 'zofl_mpi, 2 client ranks';
-- In the figure the # points below 0.1 directions per parameter close at most # % of the gap to first order (# % by exact directional derivatives, # % by differences). With 0.4 and more # of # points
select (select count(*) from pays where directions_per_parameter < 0.1), (select max(share_percent) from pays where directions_per_parameter < 0.1), (select max(share_percent) from pays where directions_per_parameter < 0.1 and method like '%jvp%'), (select max(share_percent) from pays where directions_per_parameter < 0.1 and method not like '%jvp%'), sum(share_percent >= 25), count(*)
from pays where directions_per_parameter >= 0.4;
-- with equal evaluations FedAvg's loss is # lower (# to #).
select z.nonsmooth_mean - f.nonsmooth_mean, z.nonsmooth_mean - f.nonsmooth_mean - half_apart(z.nonsmooth_sd, f.nonsmooth_sd, 3),
    z.nonsmooth_mean - f.nonsmooth_mean + half_apart(z.nonsmooth_sd, f.nonsmooth_sd, 3) from b_methods z, b_methods f
where z.best and f.best and f.method = 'fedavg' and f.rectifier = 10 and z.method = 'fedrzo' and z.evaluations = f.evaluations;
-- (ten local steps; with one # ± #).
select accuracy_mean_percent, accuracy_sd_percent from c_bytes where best and method = 'fedavg-1-topk';
-- all stages # ± # and # ± #.
select share_mean_percent, share_sd_percent from c_pays where method = 'cse_fsl' order by setting;
-- With eight directions by # points (# to #), less than by first order; with one by # (# to #).
select ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from sensed where k < 3 order by k;
-- loss # lower (# to #).
select avg(ahead), avg(ahead) - half(sqrt(sum(ahead * ahead) / 2 - 1.5 * avg(ahead) * avg(ahead)), 3), avg(ahead) + half(sqrt(sum(ahead * ahead) / 2 - 1.5 * avg(ahead) * avg(ahead)), 3)
from heron_pairs where task = 'tune';
-- No: DeComFL # ± # %, FedAvg with the top 2 % of entries # ± #, at # and # bytes a round (ten
select d.accuracy_mean_percent, d.accuracy_sd_percent, f.accuracy_mean_percent, f.accuracy_sd_percent, d.bytes_up_a_client_and_round, f.bytes_up_a_client_and_round
from c_bytes d, c_bytes f where d.best and f.best and d.method = 'decomfl' and f.method = 'fedavg-topk';
-- HERON's server, from about 4 client ranks on
select max("limit" = 'server') from scaling_model_far where method = 'heron' and client_ranks = 16;
-- Yes, by # points (# to #, n = #). | [zo
select gain_mean, least, most, seeds from shares where share = 0.001 and n = 170 and not lacking;
-- Yes, by # points (# to #). | [zo
select gain_mean, least, most from shares where share = 0.01 and n = 170 and lacking;
-- The other # close less, with up to # directions: # of them are ZO-HFL
select sum(share_percent < 25), max(iif(share_percent < 25, directions_per_parameter, 0)), sum(share_percent < 25 and method = 'ZO-HFL')
from pays where directions_per_parameter >= 0.4;
-- against directions per parameter; # settings
select count(distinct setting) from pays;
-- narrow ResNet: # points (# to #) from a frozen one
select heron_less_it_mean, heron_less_it_mean - half(heron_less_it_sd, seeds), heron_less_it_mean + half(heron_less_it_sd, seeds)
from c_fig2 where setting = 'iid' and method = 'heron-frozen';
-- Hardly: perplexity # (# to #) from a frozen client's
select heron_less_it_mean, heron_less_it_mean - half(heron_less_it_sd, seeds), heron_less_it_mean + half(heron_less_it_sd, seeds)
from c_fig5 where start = 'pretrained' and method = 'heron-frozen';
-- | DeComFL on MNIST, 100 rounds, range over seeds | # to # % (# to #) |
select least_percent, largest_percent, printed_least_percent, printed_largest_percent from c_decomfl_mnist where method = 'decomfl' and round = 100;
