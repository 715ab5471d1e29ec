-- page: analysis/results/language_tuning.md
create view lrank as select weights, train, weights || ', ' || iif(train = 'lora', 'LoRA', 'all') as what, avg(rank) as rank, sqrt((sum(rank * rank) - 3 * avg(rank) * avg(rank)) / 2) as rank_sd,
    avg(rank_sizes) as sizes, sqrt((sum(rank_sizes * rank_sizes) - 3 * avg(rank_sizes) * avg(rank_sizes)) / 2) as sizes_sd,
    avg(gain_first) as gain, sqrt((sum(gain_first * gain_first) - 3 * avg(gain_first) * avg(gain_first)) / 2) as gain_sd,
    100 * avg(share) as share, 100 * sqrt((sum(share * share) - 3 * avg(share) * avg(share)) / 2) as share_sd,
    100 * avg(predicted) as predicted, 100 * sqrt((sum(predicted * predicted) - 3 * avg(predicted) * avg(predicted)) / 2) as predicted_sd,
    avg(share_d) as d, avg(1.0 / (parameters + 2)) as plain from l_rank where task = 'food' group by weights, train;

-- | weights, what trains | tr(H)/‖H‖
select what, rank, rank_sd, sizes, sizes_sd, gain, gain_sd, share, share_sd, predicted, predicted_sd, d from lrank;
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
-- The quadratic has the share of the pretrained model within a factor of two.
select max(abs(ln(predicted / share))) < ln(2) from lrank where weights = 'pretrained';
-- its trace is 0 within its error
select abs(avg(rank)) < sqrt(avg(trace_error * trace_error / (norm * norm))) from l_rank where weights = 'random' and train = 'lora' and task = 'food';
