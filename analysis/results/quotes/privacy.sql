-- page: analysis/results/privacy.md

create view private as select * from p_privacy where best;

-- | method | ε 0.1 | 0.3 | 1 | 10 | no noise | bytes up |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (2, 'FedAvg, five steps', 'fedavg'), (3, 'SCAFFOLD', 'scaffold'),
    (4, '64 scalars', 'scalars-64'), (5, '8 scalars', 'scalars-8'), (6, '1 scalar', 'scalars-1'))
select n.k, n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' '), max(bytes_up_each)
from n join (select * from private where cell = 'fashion-170' and epsilon in ('e0.1', 'e0.3', 'e1', 'e10', 'inf')
    order by nth(epsilon, 'e0.1 | e0.3 | e1 | e10 | inf')) using (method) group by n.k;
-- | method | ε 0.3 | 1 | 3 | 10 | no noise |
with n(k, name, method) as (values (1, 'ZO-HFL, the server adds the noise', 'zo_hfl-server'), (2, 'ZO-HFL, nobody is trusted', 'zo_hfl-nobody'),
    (3, 'the server alone, no client', 'server'))
select n.k, n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' ')
from n join (select * from private where cell = 'fashion-170' order by nth(epsilon, 'e0.3 | e1 | e3 | e10 | inf')) using (method)
group by n.k;
-- | method | pure ε 1 | 10 | 100 |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (4, '64 scalars', 'scalars-64'), (5, '8 scalars', 'scalars-8'),
    (6, '1 scalar', 'scalars-1'))
select n.k, n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' ')
from n join (select * from private where epsilon in ('p1', 'p10', 'p100') order by nth(epsilon, 'p1 | p10 | p100')) using (method)
group by n.k;
-- | cell, method | ε 0.3 | 1 | no noise | bytes up |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (2, '64 scalars', 'scalars-64'), (3, '8 scalars', 'scalars-8')),
    c(j, place, cell) as (values (10, 'MNIST, n = 170', 'mnist-170'), (20, 'Fashion-MNIST, n = 7,840', 'fashion-7840'),
    (30, 'Fashion-MNIST, 10,000 clients', 'fashion-170-10000'))
select j + n.k as k, place || ': ' || n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' '), max(bytes_up_each)
from n join (select * from private order by nth(epsilon, 'e0.3 | e1 | inf')) using (method) join c using (cell)
where nth(epsilon, 'e0.3 | e1 | inf') > 0 group by j, n.k;
