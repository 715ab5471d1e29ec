-- page: README.md

-- most unequal cell: SCAFFOLD | # ± # % (#) |
select accuracy_mean_percent, accuracy_sd_percent, paper_percent from a_table1
where data = 'mnist' and cell = 'a0.1-b0.1' and method = 'scaffold';
-- | the same: ZO-HFL; the server alone | # ± # % (#); # ± # |
select nth(method, 'zo_hfl | server_sgd') as k, accuracy_mean_percent, accuracy_sd_percent, paper_percent
from a_table1 where data = 'mnist' and cell = 'a0.1-b0.1';
-- H = 1; 20 | # ± #; # ± # |
select last, last_sd from b_fig1 where eta = 0.1 and H in (1, 20) order by H;
-- FedRZO, 16 directions; FedAvg | # ± #; # ± # |
select nth(method, 'fedrzo-16 | fedavg') as k, nonsmooth_mean, nonsmooth_sd from b_methods where rectifier = 10 and best;
-- test loss before; after 30 rounds, H = 10 | #; # ± # |
select avg(c4), max(case c3 when 'H = 10' then c5 end), max(case c3 when 'H = 10' then c6 end)
from b_fig2_txt where c1 = 'hyperparameter' and c2 = 'test_loss';
-- CIFAR-10: HERON; CSE-FSL; SFLV2 | # ± # %; # ± #; # ± # |
select nth(method, 'heron | cse_fsl | sflv2') as k, accuracy_mean_percent, accuracy_sd_percent from c_fig2 where setting = 'iid';
-- HERON; CSE-FSL; SplitFed | # MiB; #; # |
select nth(method, 'heron | cse_fsl | sflv2') as k, client_peak_bytes / 1048576 from c_table2;
-- E2E, perplexity: HERON; frozen client; SplitLoRA | #; #; # |
select nth(method, 'heron | heron-frozen | splitlora') as k, validation_perplexity_mean from c_fig5 where start = 'pretrained';
-- GiB of SFLV2; G multiply-accumulates | # (#); # (#) |
select s.c4, s.c3, h.c9, h.c8 from c_table2_txt h join c_table2_txt s using (cells)
where cells = 9 and h.c1 = 'HERON' and s.c1 = 'SFLV2';
-- two client ranks beside one process: ZO-HFL; FedAvg's CNN | # times; # |
select nth(method, 'zo_hfl | fedavg-cnn') as k, speed_up from scaling
where system = 'local' and share = 'low' and study = 'strong' and ranks = 3;
-- FedJAX; pfl; stacked torch loop; here; on 2 client ranks | # ms; #; #; #; # |
select 1 as k, min(ms) from peers where variant like 'FedJAX%' union all
select 2, min(ms) from peers where variant like 'pfl%' union all
select 3, min(ms) from peers where variant like 'stacked%' union all
select 4, ms from peers where variant = 'zofl_mpi, 1 process' union all
select 5, ms from peers where variant = 'zofl_mpi, 2 client ranks';

-- with the printed steps ends at # % on MNIST and # % on Fashion-MNIST, # to # points below the printed numbers
select group_concat(mean, ' '), min(least), max(most) from (
    select min(accuracy_mean_percent) as mean, min(paper_percent - accuracy_mean_percent) as least,
        max(paper_percent - accuracy_mean_percent) as most
    from a_table1 where method = 'zo_hfl' group by data order by data desc);
-- equals SGD on the server's own data alone to within # points
select ceil(100 * points) / 100 from less_server;
-- it reaches # ± #, the server alone # ± #, SCAFFOLD # ± # % (three seeds)
select nth(method, 'zo_hfl | server_sgd | scaffold') as k, accuracy_mean_percent, accuracy_sd_percent from a_tuned where best;
-- HERON's accuracy, # ± #, is that of a frozen random client, # ± #
select nth(method, 'heron | heron-frozen') as k, accuracy_mean_percent, accuracy_sd_percent from c_fig2 where setting = 'iid';
-- with lambda tuned: # ± # % where the server alone has # ± #
select nth(method, 'zo_hfl | server_sgd') as k, accuracy_mean_percent, accuracy_sd_percent from a_share where best;
-- where it lacks three classes # ± # and # ± #
select nth(method, 'zo_hfl | server_sgd') as k, accuracy_mean_percent, accuracy_sd_percent from a_shares
where best and lacks = 3 and share = 0.01 and n = 170;
-- With # parameters, lacking classes: # ± # and # ± #, at #
select 0 as k, 7840 as a, null as b union all
select nth(method, 'zo_hfl | server_sgd') as k, accuracy_mean_percent, accuracy_sd_percent from a_shares
where best and lacks = 3 and share = 0.01 and n = 7840 union all
select 3, directions_per_parameter, null from a_shares
where best and lacks = 3 and share = 0.01 and n = 7840 and method = 'zo_hfl';
-- HERON with several directions: # ± # % where a frozen client has # ± #, SFLV2 # ± #, at # directions per parameter
select nth(method, 'heron-head-8 | heron-frozen | sflv2') as k, accuracy_mean_percent, accuracy_sd_percent from c_narrow
where best and cell = 'fashion-k4' union all
select 4, round(directions_per_parameter, 1), null from c_narrow where best and cell = 'fashion-k4' and method = 'heron-head-8';
