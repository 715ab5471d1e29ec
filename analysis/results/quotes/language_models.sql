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
-- from # to # nat, the frozen client's to #; CSE-FSL's falls from # to #. The
select nth(method, 'heron | heron-frozen | cse_fsl') as k, case method when 'heron-frozen' then null else local_loss_first end, local_loss_last from lm where start = 'pretrained';
-- own loss does not fall in these 60 steps (# to # nat)
select local_loss_first, local_loss_last from lm where start = 'pretrained' and method = 'decomfl';
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
-- | 10^12 operations, GiB | printed's way (printed) |
with n(k, method, name) as (values (1, 'splitlora', 'SplitLoRA'), (2, 'cse_fsl', 'CSE-FSL'), (3, 'heron', 'HERON'))
select k, name, m.operations_3f / 1e12, m.paper_operations, m.computed, m.mib / 1024,
    (select a.mib / 1024 from medium a where a.setting = 'paper' and a.recomputes and a.method = n.method), (m.step_bytes + m.weight_bytes) / 1073741824.0, m.paper_gb
from n join medium m using (method) where m.setting = 'paper' and not m.recomputes;
create view whole as select *, (step_bytes + weight_bytes) / 1073741824.0 as held from medium where setting = 'paper';
-- with weights #, # and # %. Of [C]'s printed memories it saves # and # %:
select 100 * (1 - h.held / s.held), 100 * (1 - h.held / c.held), 100 * (1 - h.held / a.held), 100 * (1 - h.paper_gb / s.paper_gb), 100 * (1 - h.paper_gb / c.paper_gb)
from whole h, whole s, whole c, whole a where h.method = 'heron' and s.method = 'splitlora' and not s.recomputes
    and c.method = 'cse_fsl' and not c.recomputes and a.method = 'cse_fsl' and a.recomputes;
-- it saves # % of SplitLoRA's memory and # % of CSE-FSL's, # % where these use checkpointing
select 100 * (1 - h.mib / s.mib), 100 * (1 - h.mib / c.mib), 100 * (1 - h.mib / a.mib) from medium h, medium s, medium c, medium a
where h.setting = 'paper' and s.setting = 'paper' and c.setting = 'paper' and a.setting = 'paper' and h.method = 'heron' and s.method = 'splitlora'
    and not s.recomputes and c.method = 'cse_fsl' and not c.recomputes and a.method = 'cse_fsl' and a.recomputes;
-- the lowest perplexity is #. CSE-FSL is behind the frozen client.
select min(mean) from lm where start = 'random';
-- CSE-FSL is behind the frozen client.
select c.mean > f.mean from lm c join lm f using (start) where start = 'random' and c.method = 'cse_fsl' and f.method = 'heron-frozen';
-- helps, too, by #, and one or two blocks by # and #.
select -less_frozen_mean from c_fig6 where method = 'cse_fsl' and cut = 2 order by auxiliary_blocks;
-- is # (# to #) nat with a head of norm and unembedding alone. With one, two and three blocks in the head it is # (# to #), # (# to #), # (# to #).
select less_frozen_mean, less_frozen_mean - half(less_frozen_sd, seeds), less_frozen_mean + half(less_frozen_sd, seeds) from c_fig6 where method = 'cse_fsl' and cut = 1 order by auxiliary_blocks;
-- HERON is on average within 0.001 of its control at every depth and cut.
select max(abs(less_frozen_mean)) < 0.001 and max(less_frozen_sd) < 0.003 from c_fig6 where method = 'heron';
