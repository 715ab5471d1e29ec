-- page: analysis/results/language_models.md

create view lm as
select *, validation_perplexity_mean as mean, validation_perplexity_sd as sd, heron_less_it_mean as less, heron_less_it_sd as less_sd
from c_fig5;
-- | | perplexity | HERON less it | MiB |
with n(method, name) as (values ('heron', 'HERON, LoRA'), ('heron-frozen', 'its client frozen (`--freeze client`)'),
    ('cse_fsl', 'CSE-FSL'), ('fsl_sage', 'FSL-SAGE'), ('splitlora', 'SplitLoRA'), ('decomfl', 'DeComFL'))
select name, mean, sd, case when method <> 'heron' then less end as less, case when method <> 'heron' then less - half(less_sd, 3) end as least,
    case when method <> 'heron' then less + half(less_sd, 3) end as most, bytes / 1048576, at_herons_bytes_mean, at_herons_bytes_sd
from n join lm using (method) where start = 'pretrained';
-- from # to # nat, CSE-FSL's from # to #. The
select nth(method, 'heron | cse_fsl') as k, local_loss_first, local_loss_last from lm where start = 'pretrained';
-- through them is worth # (CSE-FSL) and # (SplitLoRA)
select nth(method, 'cse_fsl | splitlora') as k, less from lm where start = 'pretrained';
-- (`c_lm_optimiser`): # ± # by the older AdamW, # ± # by
select nth(start, 'pretrained-adamw_transformers | pretrained-adamw') as k, validation_perplexity_mean, validation_perplexity_sd
from c_lm_optimiser;
-- HERON is # (# to #) from its
with q(c0, c1, c2, c3, c4) as (
select h.validation_perplexity_mean, h.validation_perplexity_sd, f.heron_less_it_mean, f.heron_less_it_mean - half(f.heron_less_it_sd, f.seeds), f.heron_less_it_mean + half(f.heron_less_it_sd, f.seeds)
from c_lm_zo h join c_lm_zo f using (start) where start = 'pretrained' and h.method = 'heron' and f.method = 'heron-frozen')
select c2, c3, c4 from q;
-- ahead by # (# to #). Backpropagation is
select -heron_less_it_mean, -heron_less_it_mean - half(heron_less_it_sd, seeds), -heron_less_it_mean + half(heron_less_it_sd, seeds) from c_lm_zo where start = 'pretrained-long' and method = 'heron-frozen';
-- HERON #, DeComFL #, SplitLoRA #. Twenty contexts
select nth(result, 'pretrained-heron-s1 | pretrained-decomfl-s1 | pretrained-splitlora-s1') as k, bleu from c_bleu;
create view medium as select *, operations_computed / 1e12 as computed, step_bytes / 1048576.0 as mib
from c_table3 where size = 'medium' and (setting = 'short' and coalesce(head_blocks, 3) = 3 or setting = 'paper' and coalesce(head_blocks, 0) = 0);
-- SplitLoRA # (#), CSE-FSL # (#), HERON # (#) 10^12 operations
select nth(method, 'splitlora | cse_fsl | heron') as k, operations_3f / 1e12, paper_operations from medium
where setting = 'paper' and not recomputes;
-- they are #, #, #. Beyond its
select nth(method, 'splitlora | cse_fsl | heron') as k, computed from medium where setting = 'paper' and not recomputes;
-- a step holds # GiB (SplitLoRA), # (CSE-FSL), # (HERON), and # and # with
select nth(method || iif(recomputes, ' again', ''), 'splitlora | cse_fsl | heron | splitlora again | cse_fsl again') as k, mib / 1024 from medium where setting = 'paper';
-- # (# to #) nat with a head of norm and unembedding alone, # (# to #), # (# to #), # (# to #) with
select less_frozen_mean, less_frozen_mean - half(less_frozen_sd, seeds), less_frozen_mean + half(less_frozen_sd, seeds) from c_fig6 where method = 'cse_fsl' and cut = 1 order by auxiliary_blocks;
-- HERON is on average within 0.001 of its control at every depth and cut.
select max(abs(less_frozen_mean)) < 0.001 and max(less_frozen_sd) < 0.003 from c_fig6 where method = 'heron';
