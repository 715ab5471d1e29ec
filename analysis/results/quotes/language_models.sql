-- page: analysis/results/language_models.md
create view lm as
select *, validation_perplexity_mean as mean, validation_perplexity_sd as sd, heron_less_it_mean as less, heron_less_it_sd as less_sd
from c_fig5;

-- | | perplexity | HERON less it | MiB |
with n(method, name) as (values ('heron', 'HERON, LoRA'), ('heron-frozen', 'its client frozen (`--freeze client`)'),
    ('cse_fsl', 'CSE-FSL'), ('fsl_sage', 'FSL-SAGE'), ('splitlora', 'SplitLoRA'), ('decomfl', 'DeComFL'))
select name, mean, sd, case when method <> 'heron' then less end as less, case when method <> 'heron' then less_sd end as less_sd,
    bytes / 1048576, at_herons_bytes_mean, at_herons_bytes_sd
from n join lm using (method) where start = 'pretrained';
-- HERON's local loss goes from # to # nat, CSE-FSL's from # to #
select nth(method, 'heron | cse_fsl') as k, local_loss_first, local_loss_last from lm where start = 'pretrained';
-- through them is worth # (CSE-FSL) and # (SplitLoRA)
select nth(method, 'cse_fsl | splitlora') as k, less from lm where start = 'pretrained';
-- it ends at # ± #, by torch's (the table's) at # ± #; seed by seed
select nth(start, 'pretrained-adamw_transformers | pretrained-adamw') as k, validation_perplexity_mean, validation_perplexity_sd
from c_lm_optimiser;
-- all best steps have smaller and larger ones beside them
select max(coalesce(at_edge, '')) = '' from c_lm_tuned;
-- CSE-FSL's, FSL-SAGE's and SplitLoRA's are 3e-3
select count(*) >= 3 and min(step like 'local-3e-3%') from c_lm_tuned
where best and method in ('cse_fsl', 'fsl_sage', 'splitlora') and start not like '%long%';
-- losses differ by less than # over all radii
select ceil(1000 * (max(validation_loss) - min(validation_loss))) / 1000 from c_lm_tuned
where method = 'heron' and start = 'pretrained' and after(step, 'local-') < 1e-2;
-- HERON has # ± #, less its frozen client's # (# to #). With
select h.validation_perplexity_mean, h.validation_perplexity_sd, f.heron_less_it_mean, f.heron_less_it_mean - half(f.heron_less_it_sd, f.seeds), f.heron_less_it_mean + half(f.heron_less_it_sd, f.seeds)
from c_lm_zo h join c_lm_zo f using (start) where start = 'pretrained' and h.method = 'heron' and f.method = 'heron-frozen';
-- every seed's validation texts, by # (# to #), and behind
select -heron_less_it_mean, -heron_less_it_mean - half(heron_less_it_sd, seeds), -heron_less_it_mean + half(heron_less_it_sd, seeds) from c_lm_zo where start = 'pretrained-long' and method = 'heron-frozen';
-- on the test texts (# beside #)
select nth(method, 'heron | heron-frozen') as k, test_perplexity_mean from c_lm_zo where start = 'pretrained-long';

-- | | perplexity | HERON less it |
with n(method, name) as (values ('heron', 'HERON'), ('heron-frozen', 'its client frozen'), ('cse_fsl', 'CSE-FSL'),
    ('splitlora', 'SplitLoRA'))
select name || ', random weights', mean, sd, case when method <> 'heron' then less end as less,
    case when method <> 'heron' then less_sd end as less_sd
from n join lm using (method) where start = 'random';
-- (CSE-FSL's local loss from # to # nat, HERON's from # to #)
select nth(method, 'cse_fsl | heron') as k, local_loss_first, local_loss_last from lm where start = 'random';
-- HERON #, DeComFL #, SplitLoRA #. Twenty contexts
select nth(result, 'pretrained-heron-s1 | pretrained-decomfl-s1 | pretrained-splitlora-s1') as k, bleu from c_bleu;

create view medium as select *, operations_computed / 1e12 as computed, step_bytes / 1048576.0 as mib
from c_table3 where size = 'medium' and (setting = 'short' and coalesce(head_blocks, 3) = 3 or setting = 'paper' and coalesce(head_blocks, 0) = 0);
-- SplitLoRA # (#), CSE-FSL # (#), HERON # (#) 10^12 operations
select nth(method, 'splitlora | cse_fsl | heron') as k, operations_3f / 1e12, paper_operations from medium
where setting = 'paper' and not recomputes;
-- as computed they are #, #, #, and
select nth(method, 'splitlora | cse_fsl | heron') as k, computed from medium where setting = 'paper' and not recomputes;
-- blocks computed again # and #. Beyond
select nth(method, 'splitlora | cse_fsl') as k, computed from medium where setting = 'paper' and recomputes;
-- a step holds # GiB (SplitLoRA), # (CSE-FSL), # (HERON), and # and # with
select nth(method || iif(recomputes, ' again', ''), 'splitlora | cse_fsl | heron | splitlora again | cse_fsl again') as k, mib / 1024 from medium where setting = 'paper';
-- SplitLoRA # MiB, # with blocks computed again, CSE-FSL # and #, HERON #, where
select nth(method || iif(recomputes, ' again', ''), 'splitlora | splitlora again | cse_fsl | cse_fsl again | heron') as k, mib from medium where setting = 'short';

-- # (# to #) nat with a head of norm and unembedding alone, # (# to #), # (# to #), # (# to #) with
select less_frozen_mean, less_frozen_mean - half(less_frozen_sd, seeds), less_frozen_mean + half(less_frozen_sd, seeds) from c_fig6 where method = 'cse_fsl' and cut = 1 order by auxiliary_blocks;
-- the client it is # (# to #), # (# to #), # (# to #). HERON
select less_frozen_mean, less_frozen_mean - half(less_frozen_sd, seeds), less_frozen_mean + half(less_frozen_sd, seeds) from c_fig6 where method = 'cse_fsl' and cut = 2 order by auxiliary_blocks;
-- HERON is on average within 0.001 of its control at every depth and cut, with deviations below 0.003
select max(abs(less_frozen_mean)) < 0.001 and max(less_frozen_sd) < 0.003 from c_fig6 where method = 'heron';
-- its local loss (# to #)
select local_loss_mean from c_fig6 where method = 'heron' and cut = 1 and auxiliary_blocks in (0, 3) order by auxiliary_blocks;
