-- page: analysis/results/language_tuning.md

create view ranks as select task, weights, train, weights || ', ' || iif(train = 'lora', 'LoRA', 'all') || iif(task = 'tune', ', to write', '') as what, avg(rank) as rank, sqrt((sum(rank * rank) - 3 * avg(rank) * avg(rank)) / 2) as rank_sd,
    avg(rank_sizes) as sizes, sqrt((sum(rank_sizes * rank_sizes) - 3 * avg(rank_sizes) * avg(rank_sizes)) / 2) as sizes_sd,
    avg(gain_first) as gain, sqrt((sum(gain_first * gain_first) - 3 * avg(gain_first) * avg(gain_first)) / 2) as gain_sd,
    100 * avg(share) as share, 100 * sqrt((sum(share * share) - 3 * avg(share) * avg(share)) / 2) as share_sd,
    100 * avg(predicted) as predicted, 100 * sqrt((sum(predicted * predicted) - 3 * avg(predicted) * avg(predicted)) / 2) as predicted_sd,
    avg(share_d) as d, avg(1.0 / (parameters + 2)) as plain from l_rank group by task, weights, train;
create view lrank as select * from ranks where task = 'food';
-- | weights, what trains | tr(H)/‖H‖
select what, rank, rank_sd, gain, gain_sd, share, share_sd, predicted, predicted_sd from ranks;
-- is too large by up to # times (without random LoRA), with the figure's rank too small by up to #.
select max(iif(what <> 'random, LoRA', 100 / rank / share, null)), max(share * sizes / 100) from ranks;
-- is within a factor of # with pretrained and tuned weights, and # times too large for all parameters of random ones
select max(iif(weights <> 'random', max(share / predicted, predicted / share), null)), max(iif(weights = 'random' and train = 'all', predicted / share, null))
from ranks;
-- With random weights a direction gains a 4 to 7 times smaller share.
select min(round(a.share / b.share) in (4, 7)) from lrank a join lrank b using (train) where a.weights = 'pretrained' and b.weights = 'random';
-- with d**: # % and # %, where
select nth(train, 'lora | all') as k, share from lrank where weights = 'pretrained';
-- where 1/(d + 2) would be # % and # %
select nth(train, 'lora | all') as k, 100 * plain from lrank where weights = 'pretrained';
-- with random weights a direction's share is # and # times smaller
select nth(a.train, 'lora | all') as k, a.share / b.share from lrank a join lrank b using (train) where a.weights = 'pretrained' and b.weights = 'random';
-- gains # to # % as much as a gradient
select min(share), max(share) from ranks where weights <> 'random';
create view both_tasks as select *, case way when 'none' then 'no tuning' when 'labels' then 'the training labels'' shares alone' when 'fedkseed' then 'FedKSeed, LoRA'
    when 'decomfl' then 'DeComFL, LoRA' when 'decomfl-all' then 'DeComFL, all parameters' when 'heron' then 'HERON, LoRA'
    when 'heron-frozen' then 'HERON, frozen client' when 'splitlora' then 'SplitLoRA' else 'FedAvg of LoRA (SFLV1)' end as name,
    iif(way in ('none', 'labels'), null, 1) as tunes, iif(way in ('fedkseed', 'decomfl', 'decomfl-all', 'heron'), 1, null) as draws
from l_tuning where best and weights <> 'random';
create view ltune as select * from both_tasks where task = 'food';
create view writing as select *, (select loss_mean from both_tasks where task = 'tune' and way = 'none') - loss_mean as gain from both_tasks where task = 'tune';
create view heron_pairs as select a.task, f.value - h.value as ahead from both_tasks a join both_tasks b using (task),
    json_each('[' || replace(a.loss_by_seed, ' ', ',') || ']') f join json_each('[' || replace(b.loss_by_seed, ' ', ',') || ']') h using (key)
    where a.way = 'heron-frozen' and b.way = 'heron';
-- | way | choice: accuracy, % | loss
select name, f.accuracy_mean_percent, f.accuracy_sd_percent, f.loss_mean, f.loss_sd, w.loss_mean as wl, w.loss_sd as ws, tunes * f.rounds, tunes * f.passes,
    draws * f.directions_per_parameter, tunes * f.bytes_up_a_round, tunes * f.bytes_down_a_round from ltune f left join l_tuning w on w.best and w.task = 'tune' and w.weights = f.weights and w.way = f.way;
-- DeComFL lowers the loss from # to # nat with LoRA; the shares of the training labels alone give #.
select nth(way, 'none | decomfl | labels') as k, loss_mean from ltune;
-- Backpropagation is far ahead of it in a third of the passes.
select min(b.loss_mean + b.loss_sd < d.loss_mean - d.loss_sd and b.passes < 0.34 * d.passes) from both_tasks b join both_tasks d using (task) where b.way = 'fedavg' and d.way = 'decomfl';
-- FedAvg has # after # passes of a client for DeComFL's #
select nth(way, 'fedavg') as k, loss_mean, passes, (select passes from ltune where way = 'decomfl') from ltune;
-- FedAvg lowers the loss by # nat. DeComFL gains # % of that with LoRA and # % with all parameters, FedKSeed # %.
select b.gain, 100 * d.gain / b.gain as c1, 100 * a.gain / b.gain as c2, 100 * f.gain / b.gain as c3
from writing d, writing a, writing f, writing b where d.way = 'decomfl' and a.way = 'decomfl-all' and f.way = 'fedkseed' and b.way = 'fedavg';
-- HERON is ahead of its frozen client by # nat to choose (95 % t interval # to #, n = #) and by # to write (# to #)
with m as (select nth(task, 'food | tune') as k, avg(ahead) as mean, count(*) as n,
    sqrt((sum(ahead * ahead) - count(*) * avg(ahead) * avg(ahead)) / (count(*) - 1)) as sd from heron_pairs group by task)
select k, mean, mean - half(sd, n), mean + half(sd, n), case k when 1 then n end from m;
create view progress as select d.task, d.weights, d.way, d.weights || ', ' || iif(d.way = 'decomfl', 'LoRA', 'all') || iif(d.task = 'tune', ', to write', '') as what, n.loss_mean as before, after(d.loss_by_round, '1:') as early, d.loss_mean as late,
    (select avg(gain_first * share) from l_rank r where r.task = d.task and r.weights = d.weights and r.train = iif(d.way = 'decomfl', 'lora', 'all')) as predicted
    from l_tuning d join l_tuning n using (task, weights) where d.best and d.way in ('decomfl', 'decomfl-all') and n.way = 'none';
create view of_weights as select a.task, a.way, (a.before - a.early) / (b.before - b.early) as early, (a.before - a.late) / (b.before - b.late) as late, a.predicted / b.predicted as predicted
    from progress a join progress b using (task, way) where a.weights = 'pretrained' and b.weights = 'random';
-- | weights, what trains | loss before
select what, before, early, late, before - early as e, before - late as l from progress where what not like '%to write';
-- gain # (LoRA) and # times
select nth(way, 'decomfl | decomfl-all') as k, early from of_weights where task = 'food';
-- accuracies are # (LoRA) and # %, with pretrained weights # and # %.
select nth(weights || ' ' || way, 'random decomfl | random decomfl-all | pretrained decomfl | pretrained decomfl-all') as k, accuracy_mean_percent from l_tuning where best and task = 'food';
create view mem as select *, size || ', ' || case way when 'decomfl' then 'DeComFL' when 'decomfl-signs' then 'DeComFL, random signs' when 'hiso' then 'HiSo'
    when 'fedkseed' then 'FedKSeed' when 'adamw' then 'AdamW' when 'inference' then 'one forward pass of transformers'
    else 'AdamW, gradient checkpointing' end as what from c_lm_memory;
-- | million parameters, step | counted
select cast(size as integer) || substr(what, instr(what, ',')), counted / 1e6, iif(passes > 0, passes / 1e6, null), iif(passes > 0, layer / 1e6, null), resident / 1e6, ratio from mem where size = 124;
-- values and # MB beyond
select max(counted - passes - layer) / 1e6 from mem where passes > 0;
-- holds # times as much, with gradient checkpointing #, # and # times
select nth(a.way || ' ' || cast(size as integer), 'adamw 124 | adamw-checkpointed 124 | adamw-checkpointed 30 | adamw-checkpointed 10') as k,
    a.counted / d.counted from mem a join mem d using (size) where d.way = 'decomfl';
-- Weights themselves take # MB here and # in AdamW's
select nth(way, 'decomfl | adamw') as k, weights / 1e6 from mem where size = 124;
-- | step of GPT-2 small | two passes
select way, ratio, resident from whole_step;
-- In each mode ours takes less time than the others.
select min(h.ratio < o.ratio) from whole_step h join whole_step o where h.way like 'here, normals%' and o.way like '%''s code%'
    and (h.way like '%central%') = (o.way like '%central%') and (h.way like '%drawn again') = (o.way like '%drawn again');
-- to write, HERON's smashed texts take # MB a round.
select bytes_up_a_round / 1e6 from both_tasks where task = 'tune' and way = 'heron';
