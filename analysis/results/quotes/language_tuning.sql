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
select max(max(predicted / share, share / predicted)) < 2 from ranks where weights <> 'random';
-- it gains # % where DeComFL ends
select share from lrank where weights = 'tuned';

-- **To write** one direction gains # % and # %.
select nth(train, 'lora | all') as k, share from ranks where task = 'tune';
-- worth # to # % of a gradient
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
-- Steps by the validation loss of seed 1, none at an edge of what was tried but one below.
select sum(coalesce(at_edge, '') <> '') = 1 from l_tuning where best;
-- FedAvg would send # KiB each way a round
select 4 * parameters / 1024 from l_rank where train = 'lora' and weights = 'tuned' and seed = 1;
-- DeComFL lowers the loss from # to # nat with LoRA and to # with all parameters, FedKSeed to #; the shares of the training labels alone give #.
select nth(way, 'none | decomfl | decomfl-all | fedkseed | labels') as k, loss_mean from ltune;
-- Backpropagation is far ahead of it in a third of the passes.
select min(b.loss_mean + b.loss_sd < d.loss_mean - d.loss_sd and b.passes < 0.34 * d.passes) from both_tasks b join both_tasks d using (task) where b.way = 'fedavg' and d.way = 'decomfl';
-- accuracies differ by # points over seeds
select accuracy_sd_percent from ltune where way = 'decomfl';
-- FedAvg has # after # passes of a client for DeComFL's #
select nth(way, 'fedavg') as k, loss_mean, passes, (select passes from ltune where way = 'decomfl') from ltune;
-- DeComFL gains # nat with LoRA and # with all parameters, # times as many, FedKSeed #: in # passes #, # and # of the # that FedAvg of LoRA gains in #.
select d.gain, a.gain, (select max(1.0 * parameters) / min(parameters) from l_rank), f.gain, d.passes, d.gain / b.gain, a.gain / b.gain, f.gain / b.gain, b.gain as g, b.passes as p
from writing d, writing a, writing f, writing b where d.way = 'decomfl' and a.way = 'decomfl-all' and f.way = 'fedkseed' and b.way = 'fedavg';
-- All seeds of each agree within # nat
select max(loss_sd) from writing;
-- HERON is ahead of its frozen client by # nat to choose (95 % t interval # to #, n = #) and by # to write (# to #)
with m as (select nth(task, 'food | tune') as k, avg(ahead) as mean, count(*) as n,
    sqrt((sum(ahead * ahead) - count(*) * avg(ahead) * avg(ahead)) / (count(*) - 1)) as sd from heron_pairs group by task)
select k, mean, mean - half(sd, n), mean + half(sd, n), case k when 1 then n end from m;
-- to write, two thirds of what backpropagation does
select min(abs(d.gain / b.gain - 2.0 / 3) < 0.05) from writing d, writing b where d.way in ('decomfl', 'decomfl-all') and b.way = 'fedavg';
-- its trace is 0 within its error
select abs(avg(rank)) < sqrt(avg(trace_error * trace_error / (norm * norm))) from l_rank where weights = 'random' and train = 'lora' and task = 'food';

create view progress as select d.task, d.weights, d.way, d.weights || ', ' || iif(d.way = 'decomfl', 'LoRA', 'all') || iif(d.task = 'tune', ', to write', '') as what, n.loss_mean as before, after(d.loss_by_round, '1:') as early, d.loss_mean as late,
    (select avg(gain_first * share) from l_rank r where r.task = d.task and r.weights = d.weights and r.train = iif(d.way = 'decomfl', 'lora', 'all')) as predicted
    from l_tuning d join l_tuning n using (task, weights) where d.best and d.way in ('decomfl', 'decomfl-all') and n.way = 'none';
create view of_weights as select a.task, a.way, (a.before - a.early) / (b.before - b.early) as early, (a.before - a.late) / (b.before - b.late) as late, a.predicted / b.predicted as predicted
    from progress a join progress b using (task, way) where a.weights = 'pretrained' and b.weights = 'random';
-- | weights, what trains | loss before
select what, before, early, late, before - early as e, before - late as l from progress;
-- for the end, gain # (LoRA) and # times less
select nth(way, 'decomfl | decomfl-all') as k, early from of_weights where task = 'food';
-- predicts # and # times;
select nth(way, 'decomfl | decomfl-all') as k, predicted from of_weights where task = 'food';
-- LoRA stays behind # times
select late from of_weights where way = 'decomfl' and task = 'food';
-- FedAvg of LoRA ends at # nat, HERON at #, its frozen client at #. All parameters gain # times
select nth(way, 'fedavg | heron | heron-frozen | decomfl-all') as k, iif(way = 'decomfl-all', (select 1 / late from of_weights where way = 'decomfl-all' and task = 'food'), loss_mean) from l_tuning where best and task = 'food' and weights = 'random';

-- its accuracy is # % with LoRA and # % with all parameters, with pretrained weights # and # %; FedAvg of LoRA has # % on random weights
select nth(weights || ' ' || way, 'random decomfl | random decomfl-all | pretrained decomfl | pretrained decomfl-all | random fedavg') as k, accuracy_mean_percent from l_tuning where best and task = 'food';
-- To write, the first directions gain # times less, 500 # times more; FedAvg of LoRA ends at # nat there.
select early, 1 / late, (select loss_mean from l_tuning where best and task = 'tune' and weights = 'random' and way = 'fedavg') as f from of_weights where task = 'tune';

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

-- | step of GPT-2 small | two passes
select way, ratio, resident from whole_step;
-- ahead one-sided (# and # kept, # and # drawn again) and central where directions are drawn again (# and #, MeZO #, FedKSeed #); central and kept DeComFL's code was (# and #).
select nth(way, 'here, normals, kept | DeComFL''s code, forward, kept | here, normals, drawn again | DeComFL''s code, forward, drawn again'
    || ' | here, normals, central, drawn again | DeComFL''s code, central, drawn again | MeZO''s code, central, drawn again'
    || ' | FedKSeed''s code, central, drawn again | DeComFL''s code, central, kept | here, normals, central, kept') as k, ratio from whole_step;
-- takes less memory than DeComFL's, kept (# and # MB) and drawn again (# and # MB; central # and #)
select nth(way, 'here, normals, kept | DeComFL''s code, forward, kept | here, normals, drawn again | DeComFL''s code, forward, drawn again'
    || ' | here, normals, central, drawn again | DeComFL''s code, central, drawn again') as k, resident from whole_step;
