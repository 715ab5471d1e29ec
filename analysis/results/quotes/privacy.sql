-- page: analysis/results/privacy.md

create view private as select * from p_privacy where best and cell <> 'shares';

-- | method | ε 0.1 | 0.3 | 1 | 10 | no noise | no clipping | bytes up |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (2, 'FedAvg, five steps', 'fedavg'), (3, 'SCAFFOLD', 'scaffold'),
    (4, '64 scalars', 'scalars-64'), (5, '8 scalars', 'scalars-8'), (6, '1 scalar', 'scalars-1'))
select n.k, n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' '), max(bytes_up_each)
from n join (select * from private where cell = 'fashion-170' and nth(epsilon, 'e0.1 | e0.3 | e1 | e10 | inf | free') > 0
    order by nth(epsilon, 'e0.1 | e0.3 | e1 | e10 | inf | free')) using (method) group by n.k;
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
-- | cell, method | ε 0.3 | 1 | 3 | 10 | no noise | bytes up |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (2, '64 scalars', 'scalars-64'), (3, '8 scalars', 'scalars-8')),
    c(j, place, cell) as (values (10, 'MNIST, n = 170', 'mnist-170'), (20, 'Fashion-MNIST, n = 7,840', 'fashion-7840'),
    (30, 'MNIST, n = 7,840', 'mnist-7840'), (40, 'Fashion-MNIST, a network', 'fashion-mlp'),
    (50, 'Fashion-MNIST, 10,000 clients', 'fashion-170-10000'))
select j + n.k as k, place || ': ' || n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' '), max(bytes_up_each)
from n join (select * from private order by nth(epsilon, 'e0.3 | e1 | e3 | e10 | inf')) using (method) join c using (cell)
where nth(epsilon, 'e0.3 | e1 | e3 | e10 | inf') > 0 group by j, n.k;
-- | K | predicted | measured |
select K as k, printf('%d', K), predicted_percent, measured_mean_percent, measured_sd_percent from p_privacy_shares order by K;

create view behind as
select f.cell, f.epsilon, substr(s.method, 9) * 1 as K, f.accuracy_mean_percent - s.accuracy_mean_percent as points
from private f join private s using (cell, epsilon) where f.method = 'fedavg-1' and s.method like 'scalars-%';

-- at ε = 0.1 to 10 they are # to # points behind one step of FedAvg, on MNIST # to #
select min(case cell when 'fashion-170' then points end), max(case cell when 'fashion-170' then points end),
    min(case cell when 'mnist-170' then points end), max(case cell when 'mnist-170' then points end)
from behind where K = 64 and epsilon like 'e%';
-- no 95 % t interval (n = 3) leaves out 0
select max(abs(f.accuracy_mean_percent - s.accuracy_mean_percent) - half_apart(f.accuracy_sd_percent, s.accuracy_sd_percent, 3)) < 0 and min(f.seeds) = 3
from private f join private s using (cell, epsilon) where f.method = 'fedavg-1' and s.method = 'scalars-64' and f.seeds = 3
    and cell in ('fashion-170', 'mnist-170') and epsilon like 'e%';
-- is nowhere ahead of what is clipped and not noised by more than a 95 % t interval
select max(f.accuracy_mean_percent - s.accuracy_mean_percent - half_apart(f.accuracy_sd_percent, s.accuracy_sd_percent, 3)) < 0
from private f join private s using (cell, method) where s.epsilon = 'inf' and f.epsilon like 'e%';
-- send # bytes in place of # and are # points behind at ε = 0.3, # at ε = 1, # at ε = 10 (Fashion-MNIST; MNIST: #, # and #)
select (select max(bytes_up_each) from private where cell = 'fashion-7840' and method = 'scalars-64'),
    (select max(bytes_up_each) from private where cell = 'fashion-7840' and method = 'fedavg-1'), group_concat(points, ' ')
from (select points from behind where cell like '%-7840' and K = 64 and epsilon in ('e0.3', 'e1', 'e10') order by cell, nth(epsilon, 'e0.3 | e1 | e10'));
-- on a network of # they are # and # behind at ε = 0.3 and 1, # at ε = 10
select (select max(n) from private where cell = 'fashion-mlp'), group_concat(points, ' ')
from (select points from behind where cell = 'fashion-mlp' and K = 64 and epsilon in ('e0.3', 'e1', 'e10') order by nth(epsilon, 'e0.3 | e1 | e10'));
-- ε = 1 costs one step of FedAvg # points of what it has without noise and five steps #, ε = 0.1 costs # and #
select group_concat(points, ' ') from (select w.accuracy_mean_percent - p.accuracy_mean_percent as points
    from private p join private w on (w.cell, w.method, w.epsilon) = (p.cell, p.method, 'inf')
    where p.cell = 'fashion-170' and p.method in ('fedavg-1', 'fedavg') and p.epsilon in ('e1', 'e0.1')
    order by nth(p.epsilon, 'e1 | e0.1'), nth(p.method, 'fedavg-1 | fedavg'));
-- is # points behind FedAvg at ε = 0.1, # at ε = 3
select group_concat(points, ' ') from (select f.accuracy_mean_percent - s.accuracy_mean_percent as points
    from private f join private s using (cell, epsilon) where f.method = 'fedavg' and s.method = 'scaffold' and epsilon in ('e0.1', 'e3')
    order by epsilon);
-- **Eight scalars** are # points behind at ε = 0.1, # to # at 0.3 to 10 and without noise, and # where nothing is clipped
select max(case epsilon when 'e0.1' then points end), min(case when epsilon in ('e0.3', 'e1', 'e3', 'e10', 'inf') then points end),
    max(case when epsilon in ('e0.3', 'e1', 'e3', 'e10', 'inf') then points end), max(case epsilon when 'free' then points end)
from behind where cell = 'fashion-170' and K = 8;
-- # scalars, the nearest below a, are predicted to make # % of first order's progress and make # ± #; the whole table agrees to a factor of #
select max(case K when 16 then K end), max(case K when 16 then predicted_percent end), max(case K when 16 then measured_mean_percent end),
    max(case K when 16 then measured_sd_percent end), max(max(measured_mean_percent / predicted_percent, predicted_percent / measured_mean_percent))
from p_privacy_shares;
-- they end #, # and # points ahead
select group_concat(-points, ' ') from (select points from behind where epsilon = 'p1' order by nth(K, '8.0 | 1.0 | 64.0'), K = 64, K = 1);
-- with # and # ± # % after ε = 0.3, by whoever adds the noise, where the server alone has #
select max(case method when 'zo_hfl-server' then accuracy_mean_percent end), max(case method when 'zo_hfl-nobody' then accuracy_mean_percent end),
    max(case method when 'zo_hfl-nobody' then accuracy_sd_percent end), (select accuracy_mean_percent from private where method = 'server')
from private where method like 'zo_hfl%' and epsilon = 'e0.3';
-- at ε = 0.3 C = 0.00003, 0.0001 and 0.0003 have #, # and # on validation samples of seed 1, the server alone #
select group_concat(validation_percent, ' ') from (select validation_percent from p_privacy where method = 'zo_hfl-server' and epsilon = 'e0.3'
    order by step * 1) union all select validation_percent from private where method = 'server';
-- Every best step has smaller and larger ones beside it but the C of ZO-HFL
select count(*) = 0 from private where at_edge <> '' and method not like 'zo_hfl%';
-- 64 scalars without clipping are # points behind those that are clipped, with n = 7,840 level with them (# and # %)
select max(case cell when 'fashion-170' then c.accuracy_mean_percent - f.accuracy_mean_percent end),
    max(case cell when 'fashion-7840' then f.accuracy_mean_percent end), max(case cell when 'fashion-7840' then c.accuracy_mean_percent end)
from private c join private f using (cell, method) where method = 'scalars-64' and c.epsilon = 'inf' and f.epsilon = 'free';

create view lies as
with told as (select method, cell, attack, aggregate, share, accuracy_mean_percent as a, accuracy_sd_percent as s from r_robust
    where local = case method when 'fedavg' then 'local-1' else 'local-0.3' end),
    kept as (select distinct method, cell, attack, aggregate from told where attack <> 'none')
select k.method, k.cell || ', ' || k.attack || ': ' || replace(replace(k.aggregate, 'trimmed-', 'trimmed:'), 'clip-', 'clip:') as name,
    n.a || ' ' || n.s as none, f.a || ' ' || f.s as fifth, h.a || ' ' || h.s as most
from kept k join told n on (n.method, n.cell, n.aggregate, n.attack) = (k.method, k.cell, k.aggregate, 'none')
join told f on (f.method, f.cell, f.aggregate, f.attack, f.share) = (k.method, k.cell, k.aggregate, k.attack, 'F-0.2')
join told h on (h.method, h.cell, h.aggregate, h.attack, h.share) = (k.method, k.cell, k.aggregate, k.attack, 'F-0.4');

-- | FedAvg's clients, attack | no liar | 20 % | 40 % |
select name, none, fifth, most from lies where method = 'fedavg';
-- | DeComFL's clients, attack | no liar | 20 % | 40 % |
select name, none, fifth, most from lies where method = 'decomfl';

create view robust as
select cell, attack, aggregate, max(iif(share = 'F-0.2', a, null)) as fifth, max(iif(share = 'F-0.4', a, null)) as most,
    (select n.accuracy_mean_percent from r_robust n where n.method = r.method and n.cell = r.cell and n.aggregate = r.aggregate
        and n.attack = 'none' and n.local = r.local) as none, method
from (select *, accuracy_mean_percent as a from r_robust where local = case method when 'fedavg' then 'local-1' else 'local-0.3' end) r
where attack <> 'none' group by method, cell, attack, aggregate;
-- from a fifth of the clients costs the mean # points (alike) and # (unlike)
select none - fifth from robust where method = 'fedavg' and attack = 'scale' and aggregate = 'mean' order by cell;
-- no mean helps, and none needs to (# points at 40 %)
select none - most from robust where method = 'fedavg' and attack = 'sign' and aggregate = 'mean' and cell = 'alike';
-- Where they are unlike all lose # to # points at 40 %
select min(none - most), max(none - most) from robust where method = 'fedavg' and attack = 'sign' and cell = 'unlike';
-- the trimmed mean least
select min(none - most) = min(iif(aggregate like 'trimmed%', none - most, 99)) from robust where method = 'fedavg' and attack = 'sign' and cell = 'unlike';
-- averages out: at most # points at 40 %
select max(none - most) from robust where method = 'fedavg' and attack = 'noise';
-- (# points; clipping #), # points for the median and # for the trimmed mean where they are unlike
select group_concat(x, ' ') from (
    select m.none - r.none as x from robust m join robust r using (method, cell, attack) where method = 'fedavg' and attack = 'scale' and m.aggregate = 'mean'
    and nth(cell || ' ' || r.aggregate, 'alike median | alike clip-1 | unlike median | unlike trimmed-0.3')
    order by nth(cell || ' ' || r.aggregate, 'alike median | alike clip-1 | unlike median | unlike trimmed-0.3'));
-- take the mean to # %; the median and clipping keep # and #. Against
select nth(aggregate, 'mean | median | clip-3') as k, fifth from robust where method = 'decomfl' and attack = 'scale';
-- the server holds all 100 replies of # bytes
select max(bytes_up_each) from private where cell = 'fashion-170' and method = 'fedavg-1';
-- the ratios are 1.5, 0.2 and 1.8: # points ahead, # behind, # ahead. At ε = 100
select case K when 8 then 1 when 1 then 2 else 3 end as k, case K when 1 then points else -points end
from behind where cell = 'fashion-170' and epsilon = 'p10';
-- differences of losses on the same model (`jobs/linear.py`), K = 8, ε = 1, one step size, ends at 75.1, 74.8 and 74.2 % with three seeds (scalars: # in the mean)
select accuracy_mean_percent from private where cell = 'fashion-170' and method = 'scalars-8' and epsilon = 'e1';
