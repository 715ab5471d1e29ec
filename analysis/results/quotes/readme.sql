-- page: README.md

-- ZO-HFL ends at # % on MNIST and # % on Fashion-MNIST, # to # points below the printed numbers
select group_concat(mean, ' '), min(least), max(most) from (
    select min(accuracy_mean_percent) as mean, min(paper_percent - accuracy_mean_percent) as least,
        max(paper_percent - accuracy_mean_percent) as most
    from a_table1 where method = 'zo_hfl' group by data order by data desc);
-- equals SGD on the server's own data alone to within # points
select ceil(100 * points) / 100 from less_server;
-- of MNIST, ZO-HFL reaches # ± #, the server alone # ± #, SCAFFOLD # ± # %.
select nth(method, 'zo_hfl | server_sgd | scaffold') as k, accuracy_mean_percent, accuracy_sd_percent from a_tuned where best;
-- HERON reaches # ± # %. With clients frozen at their random start it reaches # ± # %
select nth(method, 'heron | heron-frozen') as k, accuracy_mean_percent, accuracy_sd_percent from c_fig2 where setting = 'iid';
-- at most # % of the gap is closed. With 0.4 and more # of # points close a quarter or more
select (select max(share_percent) from pays where directions_per_parameter < 0.1), sum(share_percent >= 25), count(*)
from pays where directions_per_parameter >= 0.4;
-- FedAvg # ± #, FedRZO # ± #. Sixteen directions take # times the evaluations, for # ± #.
select nth(method, 'fedavg | fedrzo | fedrzo-16') as k, case method when 'fedrzo-16' then evaluations / (select evaluations from b_methods where best and method = 'fedavg' and rectifier = 10) end, nonsmooth_mean, nonsmooth_sd from b_methods where best and rectifier = 10;
