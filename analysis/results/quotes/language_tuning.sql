-- page: analysis/results/language_tuning.md
create view ranks as select task, weights, train, weights || ', ' || iif(train = 'lora', 'LoRA', 'all') || iif(task = 'tune', ', to write', '') as what, avg(rank) as rank, sqrt((sum(rank * rank) - 3 * avg(rank) * avg(rank)) / 2) as rank_sd,
    avg(rank_sizes) as sizes, sqrt((sum(rank_sizes * rank_sizes) - 3 * avg(rank_sizes) * avg(rank_sizes)) / 2) as sizes_sd,
    avg(gain_first) as gain, sqrt((sum(gain_first * gain_first) - 3 * avg(gain_first) * avg(gain_first)) / 2) as gain_sd,
    100 * avg(share) as share, 100 * sqrt((sum(share * share) - 3 * avg(share) * avg(share)) / 2) as share_sd,
    100 * avg(predicted) as predicted, 100 * sqrt((sum(predicted * predicted) - 3 * avg(predicted) * avg(predicted)) / 2) as predicted_sd,
    avg(share_d) as d, avg(1.0 / (parameters + 2)) as plain from l_rank group by task, weights, train;
create view lrank as select * from ranks where task = 'food';

-- | weights, what trains | tr(H)/‖H‖
select what, rank, rank_sd, sizes, sizes_sd, gain, gain_sd, share, share_sd, predicted, predicted_sd, d from ranks;
-- One direction gains # % and # % of what a gradient step does
select nth(train, 'lora | all') as k, share from lrank where weights = 'pretrained';
-- where 1/(d + 2) would be # % and # %
select nth(train, 'lora | all') as k, 100 * plain from lrank where weights = 'pretrained';
-- with random weights # % and #, that is
select nth(train, 'lora | all') as k, share from lrank where weights = 'random';
-- that is # and # times less
select nth(a.train, 'lora | all') as k, a.share / b.share from lrank a join lrank b using (train) where a.weights = 'pretrained' and b.weights = 'random';
-- gradient step is up to # times as long as the quadratic's
select max(size_first) from l_rank where weights = 'random' and task = 'food';
-- The quadratic has the share of the pretrained and of the tuned model within a factor of two.
select max(max(predicted / share, share / predicted)) < 2 from lrank where weights <> 'random';
-- it gains # % where DeComFL ends
select share from lrank where weights = 'tuned';

-- one direction gains # % and # %, as the quadratic says; tr(H)/‖H‖ is # there
select share as a, (select share from ranks where task = 'tune' and train = 'all') as b, (select avg(rank) from ranks where task = 'tune') as c
from ranks where task = 'tune' and train = 'lora';
-- as the quadratic says
select max(max(predicted / share, share / predicted)) < 1.5 from ranks where task = 'tune';

create view ltune as select *, case way when 'none' then 'no tuning' when 'labels' then 'the training labels'' shares alone' when 'fedkseed' then 'FedKSeed, LoRA'
    when 'decomfl' then 'DeComFL, LoRA' when 'decomfl-all' then 'DeComFL, all parameters' when 'heron' then 'HERON, LoRA'
    when 'heron-frozen' then 'HERON, frozen client' when 'splitlora' then 'SplitLoRA' else 'FedAvg of LoRA (SFLV1)' end as name,
    iif(way in ('none', 'labels'), null, 1) as tunes, iif(way in ('fedkseed', 'decomfl', 'decomfl-all', 'heron'), 1, null) as draws
from l_tuning where best and weights <> 'random' and task = 'food';

-- | way | test accuracy, % | test loss
select name, accuracy_mean_percent, accuracy_sd_percent, loss_mean, loss_sd, tunes * rounds, tunes * passes, draws * directions_per_parameter,
    tunes * bytes_up_a_round, tunes * bytes_down_a_round from ltune;
-- Steps by the validation loss of seed 1, none at an edge
select max(coalesce(at_edge, '')) = '' from l_tuning where best;
-- FedAvg would send # KiB each way a round
select 4 * parameters / 1024 from l_rank where train = 'lora' and weights = 'tuned' and seed = 1;
-- DeComFL lowers the loss from # to # nat with LoRA and to # with all parameters, FedKSeed to #; the shares of the training labels alone give #.
select nth(way, 'none | decomfl | decomfl-all | fedkseed | labels') as k, loss_mean from ltune;
-- a round. Backpropagation is far ahead of it in a third of the passes.
select b.accuracy_mean_percent - b.accuracy_sd_percent > d.accuracy_mean_percent + d.accuracy_sd_percent and b.passes < 0.34 * d.passes from ltune b, ltune d where b.way = 'fedavg' and d.way = 'decomfl';
-- accuracies differ by # points over seeds
select accuracy_sd_percent from ltune where way = 'decomfl';
-- FedAvg has # after # passes of a client for DeComFL's #
select nth(way, 'fedavg') as k, loss_mean, passes, (select passes from ltune where way = 'decomfl') from ltune;
-- HERON is ahead of its frozen client by # ± # nat
select avg(a.v - b.v), sqrt((sum((a.v - b.v) * (a.v - b.v)) - 3 * avg(a.v - b.v) * avg(a.v - b.v)) / 2) from
    (select 1 as k, substr(loss_by_seed, 1, 6) + 0 as v from ltune where way = 'heron-frozen' union all
     select 2, substr(loss_by_seed, 8, 6) + 0 from ltune where way = 'heron-frozen' union all
     select 3, substr(loss_by_seed, 15, 6) + 0 from ltune where way = 'heron-frozen') a join
    (select 1 as k, substr(loss_by_seed, 1, 6) + 0 as v from ltune where way = 'heron' union all
     select 2, substr(loss_by_seed, 8, 6) + 0 from ltune where way = 'heron' union all
     select 3, substr(loss_by_seed, 15, 6) + 0 from ltune where way = 'heron') b using (k);
-- its trace is 0 within its error
select abs(avg(rank)) < sqrt(avg(trace_error * trace_error / (norm * norm))) from l_rank where weights = 'random' and train = 'lora' and task = 'food';

create view mem as select *, size || ', ' || case way when 'decomfl' then 'DeComFL' when 'decomfl-signs' then 'DeComFL, random signs' when 'hiso' then 'HiSo'
    when 'fedkseed' then 'FedKSeed' when 'adamw' then 'AdamW' when 'inference' then 'one forward pass of transformers'
    else 'AdamW, gradient checkpointing' end as what from c_lm_memory;
-- | million parameters, step | counted
select cast(size as integer) || substr(what, instr(what, ',')), counted / 1e6, iif(passes > 0, passes / 1e6, null), iif(passes > 0, layer / 1e6, null), resident / 1e6, ratio from mem;
-- holds one layer's values and # MB:
select max(counted - passes - layer) / 1e6 from mem where passes > 0;
-- AdamW holds # times as much at 124 million, # times with
select nth(a.way, 'adamw | adamw-checkpointed') as k, a.counted / d.counted from mem a join mem d using (size) where d.way = 'decomfl' and a.size = 124;
-- before the step it has # MB with DeComFL at 124 million, # with
select nth(way, 'decomfl | inference') as k, before / 1e6 from mem where size = 124;
