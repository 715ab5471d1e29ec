-- page: analysis/results/privacy.md

create view private as select * from p_privacy where best and cell <> 'shares';
-- | method | ε 0.1 | 0.3 | 1 | 10 | no noise | no clipping | bytes up |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (2, 'FedAvg, five steps', 'fedavg'), (3, 'SCAFFOLD', 'scaffold'),
    (4, '64 scalars', 'scalars-64'), (5, '8 scalars', 'scalars-8'), (6, '1 scalar', 'scalars-1'))
select n.k, n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' '), max(bytes_up_each)
from n join (select * from private where cell = 'fashion-170' and nth(epsilon, 'e0.1 | e0.3 | e1 | e10 | inf | free') > 0
    order by nth(epsilon, 'e0.1 | e0.3 | e1 | e10 | inf | free')) using (method) group by n.k;
-- | method | pure ε 1 | 10 | 100 |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (4, '64 scalars', 'scalars-64'), (5, '8 scalars', 'scalars-8'),
    (6, '1 scalar', 'scalars-1'))
select n.k, n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' ')
from n join (select * from private where epsilon in ('p1', 'p10', 'p100') order by nth(epsilon, 'p1 | p10 | p100')) using (method)
group by n.k;
-- | cell, method | ε 0.3 | 1 | 3 | 10 | no noise | bytes up |
with n(k, name, method) as (values (1, 'FedAvg, one step', 'fedavg-1'), (2, '64 scalars', 'scalars-64'), (3, '8 scalars', 'scalars-8')),
    c(j, place, cell) as (values (20, 'Fashion-MNIST, n = 7,840', 'fashion-7840'))
select j + n.k as k, place || ': ' || n.name, group_concat(accuracy_mean_percent || ' ' || accuracy_sd_percent, ' '), max(bytes_up_each)
from n join (select * from private order by nth(epsilon, 'e0.3 | e1 | e3 | e10 | inf')) using (method) join c using (cell)
where nth(epsilon, 'e0.3 | e1 | e3 | e10 | inf') > 0 group by j, n.k;
create view behind as
select f.cell, f.epsilon, substr(s.method, 9) * 1 as K, f.accuracy_mean_percent - s.accuracy_mean_percent as points
from private f join private s using (cell, epsilon) where f.method = 'fedavg-1' and s.method like 'scalars-%';
-- At ε = 0.1 to 10 they are # to # points behind one step of FedAvg, on MNIST # to #
select min(case cell when 'fashion-170' then points end), max(case cell when 'fashion-170' then points end),
    min(case cell when 'mnist-170' then points end), max(case cell when 'mnist-170' then points end)
from behind where K = 64 and epsilon like 'e%';
-- no 95 % t interval (n = 3) leaves out 0
select max(abs(f.accuracy_mean_percent - s.accuracy_mean_percent) - half_apart(f.accuracy_sd_percent, s.accuracy_sd_percent, 3)) < 0 and min(f.seeds) = 3
from private f join private s using (cell, epsilon) where f.method = 'fedavg-1' and s.method = 'scalars-64' and f.seeds = 3
    and cell in ('fashion-170', 'mnist-170') and epsilon like 'e%';
-- Five steps of FedAvg, which send no more than one, are # to # points ahead of them.
select min(f.accuracy_mean_percent - s.accuracy_mean_percent), max(f.accuracy_mean_percent - s.accuracy_mean_percent)
from private f join private s using (cell, epsilon) where cell = 'fashion-170' and f.method = 'fedavg' and s.method = 'scalars-64' and epsilon like 'e%';
-- The server alone, SGD on its public samples, has # ± # %.
select accuracy_mean_percent, accuracy_sd_percent from private where method = 'server';
-- At ε = 100 they and one step of FedAvg end alike (# and #).
select nth(method, 'scalars-64 | fedavg-1') as k, accuracy_mean_percent from private where epsilon = 'p100';
-- At ε = 10 only 64 scalars are above it.
select (accuracy_mean_percent > (select accuracy_mean_percent from private where method = 'server')) = (method = 'scalars-64') from private where epsilon = 'p10';
-- and at least # points below the server alone
select min((select accuracy_mean_percent from private where method = 'server') - accuracy_mean_percent) from private where epsilon = 'p1';
-- Where they are unlike all lose less than a point at 20 %
select max(none - fifth) < 1 from robust where method = 'fedavg' and attack = 'sign' and cell = 'unlike';
-- At ε = 0.3, K = # scalars are predicted to make # % of first order's progress and make # ± #. Predictions for 1 to 64
-- agree to a factor of #.
select max(case K when 16 then K end), max(case K when 16 then predicted_percent end), max(case K when 16 then measured_mean_percent end),
    max(case K when 16 then measured_sd_percent end), max(max(measured_mean_percent / predicted_percent, predicted_percent / measured_mean_percent))
from p_privacy_shares;
-- 8, 1 and 64 scalars end #, # and # points ahead
select group_concat(-points, ' ') from (select points from behind where epsilon = 'p1' order by nth(K, '8.0 | 1.0 | 64.0'), K = 64, K = 1);
-- At ε = 0.3 it has # if the server adds the noise, and # ± # % if clients do
select max(case method when 'zo_hfl-server' then accuracy_mean_percent end), max(case method when 'zo_hfl-nobody' then accuracy_mean_percent end),
    max(case method when 'zo_hfl-nobody' then accuracy_sd_percent end)
from private where method like 'zo_hfl%' and epsilon = 'e0.3';
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
select name, none, fifth, most from lies where method = 'fedavg' and name not like '%noise%' and name not like 'alike, sign%';
-- no mean helps, and at 40 % all lose # to # points.
select min(none - most), max(none - most) from robust where method = 'fedavg' and attack = 'sign' and cell = 'alike';
create view robust as
select cell, attack, aggregate, max(iif(share = 'F-0.2', a, null)) as fifth, max(iif(share = 'F-0.4', a, null)) as most,
    (select n.accuracy_mean_percent from r_robust n where n.method = r.method and n.cell = r.cell and n.aggregate = r.aggregate
        and n.attack = 'none' and n.local = r.local) as none, method
from (select *, accuracy_mean_percent as a from r_robust where local = case method when 'fedavg' then 'local-1' else 'local-0.3' end) r
where attack <> 'none' group by method, cell, attack, aggregate;
-- from a fifth of the clients costs the mean # points (alike) and # (unlike)
select none - fifth from robust where method = 'fedavg' and attack = 'scale' and aggregate = 'mean' order by cell;
-- at 20 %, and # to # points at 40 %
select min(none - most), max(none - most) from robust where method = 'fedavg' and attack = 'sign' and cell = 'unlike';
-- mean from # to # %. The median and clipping keep # and #.
select 0 as k, none from robust where method = 'decomfl' and attack = 'scale' and aggregate = 'mean' union all
select nth(aggregate, 'mean | median | clip-3') as k, fifth from robust where method = 'decomfl' and attack = 'scale';
-- they send # bytes in place of # and are # points behind at ε = 0.3, # at ε = 1
select (select max(bytes_up_each) from private where cell = 'fashion-7840' and method = 'scalars-64'),
    (select max(bytes_up_each) from private where cell = 'fashion-7840' and method = 'fedavg-1'), group_concat(points, ' ')
from (select points from behind where cell = 'fashion-7840' and K = 64 and epsilon in ('e0.3', 'e1') order by nth(epsilon, 'e0.3 | e1'));
-- clipping itself costs #.
select f.accuracy_mean_percent - c.accuracy_mean_percent from private f join private c using (cell, method)
where cell = 'fashion-170' and method = 'fedavg-1' and f.epsilon = 'free' and c.epsilon = 'inf';
-- At ε = 0.1 only these five steps have a higher mean than the server alone.
select (accuracy_mean_percent > (select accuracy_mean_percent from private where method = 'server')) = (method = 'fedavg')
from private where cell = 'fashion-170' and epsilon = 'e0.1' and method not like 'zo_hfl%';
-- ε = 1 costs one step of FedAvg # points, ε = 0.1 costs #
select group_concat(points, ' ') from (select w.accuracy_mean_percent - p.accuracy_mean_percent as points
    from private p join private w on (w.cell, w.method, w.epsilon) = (p.cell, p.method, 'inf')
    where p.cell = 'fashion-170' and p.method = 'fedavg-1' and p.epsilon in ('e1', 'e0.1') order by nth(p.epsilon, 'e1 | e0.1'));
-- alike, and # and # points where they are unlike. `clip:1` costs # where they are alike.
select group_concat(x, ' ') from (
    select m.none - r.none as x from robust m join robust r using (method, cell, attack) where method = 'fedavg' and attack = 'scale' and m.aggregate = 'mean'
    and nth(cell || ' ' || r.aggregate, 'unlike median | unlike trimmed-0.3 | alike clip-1')
    order by nth(r.aggregate, 'median | trimmed-0.3 | clip-1'));
