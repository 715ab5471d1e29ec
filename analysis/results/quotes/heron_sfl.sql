-- page: analysis/results/heron_sfl.md

-- | | iid | HERON less it |
with n(method, name) as (values ('heron', 'HERON'), ('heron-frozen', 'its client frozen (`--freeze client`)'),
    ('heron-frozen-head', 'its head frozen (`--freeze auxiliary`)'), ('heron-still', 'neither moves (`--lr-client 0`)'),
    ('cse_fsl', 'CSE-FSL'), ('fsl_sage', 'FSL-SAGE'), ('sflv1', 'SFLV1'), ('sflv2', 'SFLV2'))
select name, accuracy_mean_percent, accuracy_sd_percent, case when method <> 'heron' then heron_less_it_mean end as less,
    case when method <> 'heron' then heron_less_it_sd end as less_sd
from n join c_fig2 using (method) order by setting desc;
-- HERON's goes from # to # nat, nearly all of it the head's (frozen client #; frozen head #; step 0 #), CSE-FSL's to #
select nth(method, 'heron | heron-frozen | heron-frozen-head | heron-still | cse_fsl') as k,
    case method when 'heron' then local_loss_first end as first, local_loss_last
from c_fig2 where setting = 'iid';

create view narrow as
select *, accuracy_mean_percent as mean, accuracy_sd_percent as sd, less_frozen_mean as gain, less_frozen_sd as gain_sd from c_fig4;
-- end between # and # %, the frozen client at # ± #
select min(case when not frozen then mean end), max(case when not frozen then mean end), max(case when frozen then mean end),
    max(case when frozen then sd end) from narrow where cut = 1;
-- at the client # to #, frozen # ± #
select min(case when not frozen then mean end), max(case when not frozen then mean end), max(case when frozen then mean end),
    max(case when frozen then sd end) from narrow where cut = 2;
-- HERON less the frozen client is # to # points
select min(gain), max(gain) from narrow;
-- a radius of 0.1 and more costs # to #
select min(-gain), max(-gain) from narrow where mu >= 0.1;
-- n_p = 4 with two blocks gains # (# to #)
select gain, gain - half(gain_sd, 3), gain + half(gain_sd, 3) from narrow where cut = 2 and n_p = 4;
-- no gain's interval lies above 0
select max(gain - half(gain_sd, seeds)) <= 0 from narrow where not frozen;
-- n_p = 8 there # (# to #)
select gain, gain - half(gain_sd, 3), gain + half(gain_sd, 3) from narrow where cut = 2 and n_p = 8;
-- More directions lower the local loss (# to # nat)
select local_loss from narrow where cut = 1 and mu = 0.001 and n_p in (1, 8) order by n_p;
-- in all # cells
select count(*) from c_fig3 where method = 'heron' and not (panel = 'beta' and value = 1);
-- (# to #, mean #)
select min(less_frozen_mean), max(less_frozen_mean), avg(less_frozen_mean) from c_fig3
where method = 'heron' and not (panel = 'beta' and value = 1);
-- alpha = 0.1 costs # points
select max(case value when 1000 then accuracy_mean_percent end) - max(case value when 0.1 then accuracy_mean_percent end)
from c_fig3 where method = 'heron' and panel = 'alpha';
-- fraction of 0.1 costs #.
select max(case value when 1 then accuracy_mean_percent end) - max(case value when 0.1 then accuracy_mean_percent end)
from c_fig3 where method = 'heron' and panel = 'beta';
-- HERON ends at #, #, #, # %
select accuracy_mean_percent from c_fig3 where method = 'heron' and panel = 'm' and value in (10, 20, 50, 100) order by value;
-- `--norm group` it is #, #, # % with
select accuracy_mean_percent from c_fig3 where method = 'heron-group' and panel = 'm' and value in (10, 50, 100) order by value;
-- is # ± # before training, # ± # after HERON's 60 rounds, # ± # after CSE-FSL's
select nth(model, 'before training, seed 1 | HERON, 60 rounds | CSE-FSL, 60 rounds') as k,
    effective_rank, effective_rank_error from c_fig7;
-- whose |H|_2 is # beside HERON's #
select nth(model, 'CSE-FSL, 60 rounds | HERON, 60 rounds') as k, norm from c_fig7;

-- HERON #, #, # rounds and # GiB, frozen #, #, # and # GiB, CSE-FSL #, #, # and # GiB, SFLV2 #, #, # and # GiB
select nth(method, 'heron | heron-frozen | cse_fsl | sflv2') as k, rounds_to_target, gib from c_table2;
-- step holds # MiB, CSE-FSL's #, SplitFed's #
select nth(method, 'heron | cse_fsl | sflv2') as k, client_peak_bytes / 1048576 from c_table2;
-- #, #, # G multiply-accumulates
select nth(method, 'heron | cse_fsl | sflv2') as k, client_macs_a_step / 1e9 from c_table2;
-- by `--dry-run`: # GiB (#), # or with heads # (#), # (#); CSE-FSL # (#) and SFLV1 # (#) are not.
select nth(c1, 'SFLV2 | HERON | FSL-SAGE | CSE-FSL | SFLV1') as k, case when c1 in ('SFLV2', 'HERON', 'SFLV1') then c4 end as ours,
    case when c1 in ('HERON', 'FSL-SAGE', 'CSE-FSL') then c5 end as with_heads, c3
from c_table2_txt where cells = 9;
-- # and # G (#, #)
select group_concat(c9, ' '), group_concat(c8, ' ')
from (select * from c_table2_txt where cells = 9 and c1 in ('HERON', 'CSE-FSL') order by c1 desc);
-- client # MiB of # (#; printed # of #, #)
select h.c7, s.c7, h.c7 / s.c7, h.c6, s.c6, h.c6 / s.c6 from c_table2_txt h join c_table2_txt s using (cells)
where cells = 9 and h.c1 = 'HERON' and s.c1 = 'SFLV2';

create view stages as
select *, setting like 'CIFAR-10%' as cifar, accuracy_mean_percent as mean, accuracy_sd_percent as sd, client_peak_bytes / 1048576 as mib,
    client_macs / 1e9 as work, share_mean_percent as share, share_sd_percent as share_sd from c_pays;
create view pairs as
select m.*, p.ahead_mean, p.ahead_sd, p.ahead_by_seed, o.cosine as other_cosine, o.cosine_sd as other_sd, o.passes as other_passes
from c_pays_pairs p join stages m using (setting, method) join stages o on o.setting = p.setting and o.method = p.beside;

-- | | CIFAR-10 | share | MiB |
with n(method, name) as (values ('heron-frozen', 'frozen client'), ('heron', 'HERON'), ('heron-head', 'HERON, exact head'),
    ('heron-head-8', 'the same, eight directions'), ('heron-head-jvp', 'the same, derivatives (`jvp`)'),
    ('heron-sample', 'the same, per sample'), ('heron-sample-8', 'per sample, eight directions'), ('ho_sfl', 'HO-SFL'),
    ('ho_sfl-jvp', 'HO-SFL, `jvp`'), ('ho_sfl-sample', 'HO-SFL, per sample'), ('heron-n2', 'last stage exact, the others frozen'),
    ('heron-n2-zo', 'the same, the others estimated'), ('ho_sfl-n2', 'HO-SFL, last stage exact, the others frozen'),
    ('ho_sfl-n2-zo', 'HO-SFL, the others estimated'), ('heron-n4', 'last two stages exact'), ('cse_fsl', 'CSE-FSL, all stages'),
    ('sflv2', 'SFLV2'))
select name, mean, sd, share, case when method not in ('heron-frozen', 'sflv2') then share_sd end as share_sd,
    case when method <> 'heron-frozen' then mib end as mib
from n join stages using (method) order by cifar desc;
-- HERON closes # ± # % of the gap on CIFAR-10
select share, share_sd from stages where cifar and method = 'heron';
-- on CIFAR-10 (# points, # to #)
select gain_mean, gain_mean - half(gain_sd, 3), gain_mean + half(gain_sd, 3) from stages where cifar and method = 'heron-head';
-- a little more (#, # to #), at a first-order client's memory (# of # MiB)
select nth(method, 'heron-sample | cse_fsl') as k, case method when 'heron-sample' then gain_mean end as gain,
    case method when 'heron-sample' then gain_mean - half(gain_sd, 3) end as least,
    case method when 'heron-sample' then gain_mean + half(gain_sd, 3) end as most, mib from stages where cifar;
-- sends # times HERON's bytes
select max(1.0 * o.bytes / h.bytes) from stages o join stages h using (cifar) where o.method = 'ho_sfl' and h.method = 'heron';
-- sends 1.8 times HERON's bytes
select round(1.0 * o.bytes / h.bytes, 1) = 1.8 from stages o join stages h using (cifar) where o.method = 'ho_sfl' and h.method = 'heron';
-- (HERON on the validation part: # % with a step of 3e-6, # with 1e-5; frozen #)
select nth(method || ' ' || iif(method = 'heron', step, iif(best, 'best', '')),
    'heron local-3e-6 server-1e-1 | heron local-1e-5 server-1e-1 | heron-frozen best') as k, validation_percent
from c_pays_steps where setting like 'Fashion%';
-- it closes # % and # % at # and # times a forward-only step's memory, # and # of
select group_concat(n.share, ' '), group_concat(n.mib / h.mib, ' '), group_concat(n.mib / c.mib, ' ')
from (select * from stages order by cifar desc) n join stages h using (cifar) join stages c using (cifar)
where n.method = 'heron-n2' and h.method = 'heron-head' and c.method = 'cse_fsl';
-- HERON (# of # G, # of #)
select n.work, h.work from stages n join stages h using (cifar)
where n.method = 'heron-n2' and h.method = 'heron' order by cifar desc;
-- stages close # and # %
select share from stages where method = 'heron-n4' order by cifar desc;
-- stage, are # (# to #) points above none on CIFAR-10 and # (# to #) on Fashion-MNIST: not told apart
select ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where method = 'heron-n2-zo' order by cifar desc;
-- last stage exact is # (# to #) points above HERON's
select ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where cifar and method = 'ho_sfl-n2';
-- the layers before give # (# to #).
select ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where cifar and method = 'ho_sfl-n2-zo';
-- little (# to # MiB, # to #)
select c3, c4 from c_pays_txt where c2 = 'CSE-FSL' and cells = 6;
-- ahead by #, #, # and by #, #, # points, seed by seed
select gain_by_seed from stages where method = 'sflv2' order by cifar desc;
-- CSE-FSL by # to # and # to #. **Share
with recursive s(cifar, method, number, rest) as (
    select cifar, method, null, gain_by_seed || ' ' from stages union all
    select cifar, method, cast(rest as real), substr(rest, instr(rest, ' ') + 1) from s where rest <> '')
select min(number), max(number) from s where method = 'cse_fsl' group by cifar order by cifar desc;
-- SFLV2 is # to # points ahead of a frozen client with untuned steps
select min(sflv2_more), max(sflv2_more) from c_pays_search where setting not like '%α%';
-- it is # *behind*, and CSE-FSL #:
select -sflv2_more, -cse_fsl_more from c_pays_search where setting like '%α%';

-- cosine with the gradient is # ± #, where the rule
select cosine, cosine_sd from stages where cifar and method = 'heron-head';
-- a root mean square, says # (d
select cosine_rule from stages where cifar and method = 'heron-head';
-- oracle without mu, have # ± # and are # (# to #) points ahead of differences
select cosine, cosine_sd, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where cifar and method = 'heron-head-jvp';
-- at # MiB, where CSE-FSL takes #.
select nth(method, 'heron-head-jvp | cse_fsl') as k, mib from stages where cifar;
-- So it is with HO-SFL (# ± # for # ± #, # points, # to #)
select cosine, cosine_sd, other_cosine, other_sd, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where cifar and method = 'ho_sfl-jvp';
-- and on Fashion-MNIST (# ± # for # ± #, # points, # to #)
select cosine, cosine_sd, other_cosine, other_sd, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where not cifar and method = 'heron-head-jvp';
-- Eight directions have # ± # (rule: #) and are # (# to #) points ahead of one
select cosine, cosine_sd, cosine_rule, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where cifar and method = 'heron-head-8';
-- takes # forward passes for #, in all # G multiply-accumulates for CSE-FSL's #.
select p.passes, p.other_passes, p.work, c.work from pairs p join stages c using (cifar)
where cifar and p.method = 'heron-head-8' and c.method = 'cse_fsl';
-- one wins # points with eight directions, # with one, and # in the exact last stage
select nth(method, 'heron-head-8 | heron-head | heron-n2') as k, gain_mean / (passes - 1) from stages where cifar;
-- Per sample, eight directions have # ± # for one's # ± #, and are # (# to #) points ahead (seed by seed #, #, #)
select cosine, cosine_sd, other_cosine, other_sd, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3), ahead_by_seed from pairs where cifar and method = 'heron-sample-8';
-- won here, # ± # % of the gap, for # passes a step
select share, share_sd, passes from stages where cifar and method = 'heron-sample-8';
-- On Fashion-MNIST eight directions have # ± # for # ± # and win # (# to #) points
select cosine, cosine_sd, other_cosine, other_sd, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from pairs where not cifar and method = 'heron-head-8';

create view uplink as select * from c_pays_uplink where setting like 'CIFAR-10%';
-- smashed samples are # KiB a client and round on CIFAR-10, a dense model # KiB with
select smashed_bytes / 1024.0, bytes / 1024.0 from uplink where method = 'cse_fsl' and uplink = 'dense';
-- (# a round) Ferret's # coefficients
select bytes, numbers from uplink where method = 'sflv2' and uplink = 'coefficients' limit 1;
-- a cosine of about #, HO-SFL's ten estimates each with #
select f.cosine, h.cosine from uplink f join uplink h where f.method = 'sflv2' and f.uplink = 'coefficients'
    and h.method = 'ho_sfl' and h.uplink = 'seeds' limit 1;
-- they take # KiB of the dense #.
select group_concat(bytes / 1024.0, ' ') from (select * from uplink where method = 'sflv2' and uplink <> 'seeds' order by uplink, numbers)
where uplink = 'dense' or numbers > 18;

-- | | MNIST, k = 4 | Fashion-MNIST, k = 2 | k = 4 | k = 16 |
with n(method, name) as (values ('heron-frozen', 'frozen client'), ('heron', 'HERON, one direction'),
    ('heron-head', 'HERON, exact head, one direction'), ('heron-head-8', 'HERON, exact head, eight directions'),
    ('ho_sfl-8', 'HO-SFL, eight directions'), ('cse_fsl', 'CSE-FSL'), ('sflv2', 'SFLV2'))
select name, mean, sd from (
    select name, accuracy_mean_percent as mean, accuracy_sd_percent as sd, nth(cell, 'mnist-k4 | fashion-k2 | fashion-k4 | fashion-k16') as place
    from n join c_narrow using (method) where best
    union all
    select 'directions per parameter of eight', directions_per_parameter, null, nth(cell, 'mnist-k4 | fashion-k2 | fashion-k4 | fashion-k16')
    from c_narrow where best and method = 'heron-head-8') order by place;
-- every best step has smaller and larger ones beside it. Test
select count(*) = 21 from c_narrow where best and coalesce(at_edge, '') = '' and seeds = 3;
create view cuts as select *, nth(setting, 'MNIST, cut of 4 features | Fashion-MNIST, cut of 4 features'
    || ' | Fashion-MNIST, cut of 2 features | Fashion-MNIST, cut of 16 features') as k from pays where study = 'c_narrow';
-- the frozen client by # (# to #) points with 4 features on MNIST, # (# to #) on Fashion-MNIST, # (# to #) with 2 features and # (# to #) with 16
select k, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from cuts where method = 'HERON, exact head, 8 directions';
-- above 0 each time
select min(ahead_mean > half(ahead_sd, 3)) from cuts where method = 'HERON, exact head, 8 directions';
-- They close #, #, # and # % of the gap
select k, share_percent from cuts where method = 'HERON, exact head, 8 directions';
-- one direction, 0.96 a parameter, closes # and # % with 4 features
select k, share_percent from cuts where method = 'HERON, exact head';
-- along the server's answers, closes # and # %
select k, share_percent from cuts where method = 'HO-SFL, 8 directions';
-- are not told apart (# ± # and # ± # %)
select nth(method, 'heron-head-8 | cse_fsl') as k, accuracy_mean_percent, accuracy_sd_percent from c_narrow where best and cell = 'fashion-k2';
-- A frozen client with 16 features has # %, HERON with 4 features and eight directions #. The first sends # MiB of smashed numbers
select w.accuracy_mean_percent, h.accuracy_mean_percent, 64 * 16 * 4 * 3000 / 1048576.0 from c_narrow w, c_narrow h
where w.best and h.best and w.cell = 'fashion-k16' and w.method = 'heron-frozen' and h.cell = 'fashion-k4' and h.method = 'heron-head-8';
-- the second # MiB
select bytes / 1048576 from c_narrow where best and cell = 'fashion-k4' and method = 'heron-head-8';
create view more as select *, nth(cell, 'mnist-k4 | fashion-k4 | fashion-k4-momentum | fashion-k8 | cifar-k4 | cifar-k16') as place
from c_narrow_more where best;
-- | | MNIST, 4 features | Fashion-MNIST, 4 | 4, momentum | 8 | CIFAR-10, 4 | CIFAR-10, 16 |
with n(method, name) as (values ('heron-frozen', 'frozen client'), ('heron-head', 'HERON, exact head, one direction'),
    ('heron-head-8', 'HERON, exact head, eight directions'), ('heron-head-32', 'HERON, exact head, 32 directions'),
    ('ho_sfl', 'HO-SFL, one direction'), ('ho_sfl-8', 'HO-SFL, eight directions'), ('cse_fsl', 'CSE-FSL'), ('sflv2', 'SFLV2'))
select name, mean, sd from (
    select name, accuracy_mean_percent as mean, accuracy_sd_percent as sd, place from n join more using (method)
    union all
    select 'directions per parameter of eight', directions_per_parameter, null, place from more where method = 'heron-head-8')
order by place;
-- every best step smaller and
select min(coalesce(at_edge, '') = '' and seeds = 3) from more;
create view wider as select *, nth(setting, 'CIFAR-10, cut of 4 features | CIFAR-10, cut of 16 features | Fashion-MNIST, cut of 8 features'
    || ' | MNIST, cut of 4 features | Fashion-MNIST, cut of 4 features') as k from pays where study = 'c_narrow_more';
-- is no better there than estimates with 4 features
select c.accuracy_mean_percent < max(e.accuracy_mean_percent) from more c, more e
where c.cell = 'cifar-k4' and c.method = 'cse_fsl' and e.cell = 'cifar-k4' and e.method in ('heron-head-8', 'ho_sfl-8');
-- with 4 features and # directions a parameter HERON is ahead of the frozen client by # (# to #) points and closes # % of the gap
select directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3), share_percent from wider where k = 1 and method like 'HERON%';
-- HO-SFL # %; with 16 features and # it is ahead by # (# to #) and closes # %, HO-SFL # %. With 8 features on Fashion-MNIST, # a parameter, it closes # %
select 1 as k, share_percent, null, null, null, null from wider where k = 1 and method like 'HO-SFL%' union all
select 2, directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3), share_percent from wider where k = 2 and method like 'HERON%' union all
select 3, share_percent, null, null, null, null from wider where k = 2 and method like 'HO-SFL%' union all
select 4, directions_per_parameter, share_percent, null, null, null from wider where k = 3;
-- 16 frozen random features of CIFAR-10 have # ± # %, HERON with 4 has #
select f.accuracy_mean_percent, f.accuracy_sd_percent, h.accuracy_mean_percent from more f, more h
where f.cell = 'cifar-k16' and f.method = 'heron-frozen' and h.cell = 'cifar-k4' and h.method = 'heron-head-8';
-- 32, # a parameter, close # % of the gap on MNIST and # % on Fashion-MNIST, eight # and # in the same runs
select max(directions_per_parameter), max(case k when 4 then share_percent end), max(case k when 5 then share_percent end),
    (select group_concat(100 * (h.accuracy_mean_percent - f.accuracy_mean_percent) / (s.accuracy_mean_percent - f.accuracy_mean_percent), ' ')
    from (select * from more order by place) h join more f using (cell) join more s using (cell) where cell in ('mnist-k4', 'fashion-k4')
    and h.method = 'heron-head-8' and f.method = 'heron-frozen' and s.method = 'sflv2')
from wider where method like '%32 directions';
-- which has its gradient, is at # and # % (table above)
select nth(cell, 'mnist-k4 | fashion-k4') as k, accuracy_mean_percent from c_narrow where best and method = 'cse_fsl';
-- with one direction it has # %, with eight # (Adam: # and #)
select nth(method, 'heron-head | heron-head-8') as k, accuracy_mean_percent from more where cell = 'fashion-k4-momentum' union all
select nth(method, 'a | a | heron-head | heron-head-8'), accuracy_mean_percent from c_narrow where best and cell = 'fashion-k4';
-- level with Adam's at eight directions, # and #; with one it has #
select nth(method, 'ho_sfl-8 | a | ho_sfl') as k, accuracy_mean_percent from more where cell = 'fashion-k4-momentum' union all
select 2, accuracy_mean_percent from c_narrow where best and cell = 'fashion-k4' and method = 'ho_sfl-8';
-- nothing is above # %
select ceil(max(share_percent)) from pays where directions_per_parameter < 0.1;

create view fleet as select *, cell = 'group' as grouped from c_fleet where best and cell <> 'group-trains';
-- to # ± # % with GroupNorm and # ± # with BatchNorm
select nth(cell, 'group | batch') as k, accuracy_mean_percent, accuracy_sd_percent from c_fleet_pretrain;
-- | | GroupNorm | BatchNorm |
with n(method, name) as (values ('heron-none', 'no adaptation'), ('heron-statistics', 'statistics taken anew, nothing trains'),
    ('heron-1', 'HERON, one direction'), ('heron-8', 'HERON, eight directions'), ('heron-32', 'HERON, 32 directions'),
    ('heron-norm-8', 'the same, the 160 numbers of all normalisations'), ('ho_sfl-8', 'HO-SFL, eight directions'),
    ('heron-last', 'last stage exact, the others frozen'), ('sflv2-all', 'SFLV2, all three stages'), ('cse_fsl', 'CSE-FSL, along the head''s loss'), ('sflv2', 'SFLV2, along the server''s'))
select name, accuracy_mean_percent, accuracy_sd_percent from n join fleet using (method) order by grouped desc;
-- no best step is at an edge of those tried. Test accuracy in % of three seeds, each client
select min(coalesce(at_edge, '') = '' and seeds = 3) from fleet;
-- | | inverted | too bright | tinted | contrast | blurred |
with n(method, cell, name) as (values ('heron-none', 'group', 'no adaptation, GroupNorm'), ('sflv2', 'group', 'SFLV2, GroupNorm'),
    ('heron-8', 'group', 'HERON, eight directions, GroupNorm'), ('heron-none', 'batch', 'no adaptation, BatchNorm'),
    ('heron-statistics', 'batch', 'statistics taken anew, BatchNorm'))
select name, test_accuracy_invert_mean_percent, test_accuracy_gain_mean_percent, test_accuracy_tint_mean_percent,
    test_accuracy_contrast_mean_percent, test_accuracy_blur_mean_percent from n join fleet using (method, cell);
create view sensed as select *, nth(method, 'HERON, frozen head, 8 directions | HERON, frozen head | HERON, frozen head, 32 directions') as k
from pays where study = 'c_fleet' and setting like '%that differ';
-- eight directions, # a parameter, are ahead of no adaptation by # (# to #) points, one direction, # a parameter, by # (# to #)
select k, directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from sensed where k < 3;
-- 32 directions, # a parameter, by # (# to #);
select directions_per_parameter, ahead_mean, ahead_mean - half(ahead_sd, 3), ahead_mean + half(ahead_sd, 3) from sensed where k = 3;
-- close #, # and # % of the gap to SFLV2
select k, share_percent from sensed;
-- on the normalisations alone, ten directions a parameter, close # and # %
select nth(method, 'HO-SFL, 8 directions | HERON, normalisations, 8 directions') as k, share_percent from pays where study = 'c_fleet';
create view trains as select * from c_fleet where best and cell = 'group-trains';
-- it learns the sensors itself: # ± # % with
select accuracy_mean_percent, accuracy_sd_percent from trains where method = 'heron-none';
-- more than eight directions win beside a server that does not train
select t.accuracy_mean_percent > f.accuracy_mean_percent from trains t, fleet f where t.method = 'heron-none' and f.method = 'heron-8' and f.grouped;
-- HERON's eight directions win # points (# to #, seed by seed, n = 3), # ± # %, and SFLV2 has # ± #: # % of a smaller gap
select p.ahead_mean, p.ahead_mean - half(p.ahead_sd, 3), p.ahead_mean + half(p.ahead_sd, 3), h.accuracy_mean_percent, h.accuracy_sd_percent, s.accuracy_mean_percent,
    s.accuracy_sd_percent, p.share_percent
from pays p, trains h, trains s where p.setting like '%server trains' and h.method = 'heron-8' and s.method = 'sflv2';
-- every upload for it, # MiB in all for #.
select t.bytes / 1048576, f.bytes / 1048576 from trains t, fleet f where t.method = 'heron-8' and f.method = 'heron-8' and f.grouped;
-- exact last stage, the others frozen, has about as much: # ± # % (
select accuracy_mean_percent, accuracy_sd_percent from fleet where method = 'heron-last';
-- win more than half of what first order wins
select share_percent > 50 from sensed where k = 1;
-- remain the hardest for all: # %, first order #
select nth(method, 'heron-8 | sflv2') as k, test_accuracy_invert_mean_percent from fleet where grouped;
-- Inverted images remain the hardest for all:
select min(test_accuracy_invert_mean_percent < min(test_accuracy_gain_mean_percent, test_accuracy_tint_mean_percent,
    test_accuracy_contrast_mean_percent, test_accuracy_blur_mean_percent)) from fleet;
-- directions or step size, # % become #, which is more than any method reaches with GroupNorm
select nth(method, 'heron-none | heron-statistics') as k, accuracy_mean_percent from fleet where not grouped;
-- which is more than any method reaches with GroupNorm but SFLV2 on all three stages
select (select accuracy_mean_percent from fleet where method = 'heron-statistics') > max(accuracy_mean_percent) from fleet where grouped and method <> 'sflv2-all';
-- pretrained network that is # points better
select b.accuracy_mean_percent - g.accuracy_mean_percent from c_fleet_pretrain b join c_fleet_pretrain g where b.cell = 'batch' and g.cell = 'group';
-- eight directions win # (# to #) points, and SFLV2 # (with steps of 3e-4, which the rule passes over, it ends at # ± # %)
select p.ahead_mean, p.ahead_mean - half(p.ahead_sd, 3), p.ahead_mean + half(p.ahead_sd, 3), s.accuracy_mean_percent - f.accuracy_mean_percent, o.accuracy_mean_percent, o.accuracy_sd_percent
from pays p, fleet f, fleet s, c_fleet o where p.study = 'c_fleet' and p.setting like '%BatchNorm%' and f.method = 'heron-statistics'
and s.method = 'sflv2' and not s.grouped and o.cell = 'batch' and o.method = 'sflv2' and o.step = 'local-3e-4';

-- | | G = 1 | G = 5 | G = 10 |
with n(method, name, g) as (values ('cse_fsl', 'CSE-FSL', 1), ('cse_fsl-5', 'CSE-FSL', 5), ('cse_fsl-10', 'CSE-FSL', 10),
    ('sflv2', 'SFLV2', 1), ('sflv2-5', 'SFLV2', 5), ('sflv2-10', 'SFLV2', 10))
select name, accuracy_mean_percent, accuracy_sd_percent from n join c_merge using (method) where best order by g;
-- and never the smallest or largest of
select count(*) = 6 from c_merge where best and coalesce(at_edge, '') = '' and seeds = 3;
-- 0.003 throughout, G = 10 has # ± # %
select accuracy_mean_percent, accuracy_sd_percent from c_merge where method = 'sflv2-10' and step = 'server-3e-3';
create view published as select * from c_decomfl_mnist;
-- | rounds | DeComFL, printed |
select printf('%,d', d.round), d.printed_least_percent, d.printed_largest_percent, d.least_percent, d.largest_percent,
    f.printed_least_percent, f.printed_largest_percent, f.least_percent, f.largest_percent
from (select * from published where method = 'decomfl') d left join (select * from published where method = 'fedavg') f using (round);
-- FedAvg is # points below the printed range
select round(printed_least_percent - largest_percent, 1) from published where method = 'fedavg' and round = 100;
-- A round of DeComFL takes # to # s here
select seconds_least, seconds_largest from published where method = 'decomfl' and round = 100;
-- in one process each it is # to # s
select seconds_least, seconds_largest from published where method = 'decomfl' and round = 200;

create view light as select * from c_bytes;
create view bests as select * from light where best;
-- | | accuracy | bytes up, a client and round |
with n(method, name) as (values ('fedavg', 'FedAvg'), ('fedavg-quantise', 'FedAvg, 3 bits'), ('fedavg-topk', 'FedAvg, top 2 %'),
    ('fedavg-1', 'FedAvg, one step'), ('fedavg-1-topk', 'FedAvg, one step, top 2 %'), ('decomfl', 'DeComFL'), ('hiso', 'HiSo'), ('heron', 'HERON'))
select name, accuracy_mean_percent, accuracy_sd_percent, bytes_up_a_client_and_round, rounds_to_80_by_seed,
    bytes_up_to_80 / 1024, bytes_both_to_80 / 1024
from n join bests using (method);
-- it needs # of DeComFL's rounds to 80 %, # to 75 % (means)
select h.rounds_to_80_mean / d.rounds_to_80_mean, h.rounds_to_75_mean / d.rounds_to_75_mean
from bests h, bests d where h.method = 'hiso' and d.method = 'decomfl';
create view soonest as select *, min(ifnull(rounds_by_validation, 1e9)) from light where method in ('hiso', 'decomfl') group by method;
-- (0.2 and 0.03) these are # and #
select h.rounds_to_80_mean / d.rounds_to_80_mean, h.rounds_to_75_mean / d.rounds_to_75_mean
from soonest h, soonest d where h.method = 'hiso' and d.method = 'decomfl';
-- (0.2 and 0.03) these are
select group_concat(step, ' ') = 'local-0.2 local-0.03' from (select * from soonest order by method);
-- with HiSo's step of 0.06, three seeds too, # and #, but it ends at # ± # %, DeComFL with 0.2 at # ± #.
select h.rounds_to_80_mean / d.rounds_to_80_mean, h.rounds_to_75_mean / d.rounds_to_75_mean, h.accuracy_mean_percent,
    h.accuracy_sd_percent, d.accuracy_mean_percent, d.accuracy_sd_percent
from light h, light d where h.method = 'hiso' and h.step = 'local-0.06' and d.method = 'decomfl' and d.step = 'local-0.2';
-- a client sends # bytes a round, DeComFL's scalars are #: FedAvg reaches 80 % with # KiB up, DeComFL with #, and ends # points higher
select t.bytes_up_a_client_and_round, d.bytes_up_a_client_and_round, t.bytes_up_to_80 / 1024, d.bytes_up_to_80 / 1024,
    t.accuracy_mean_percent - d.accuracy_mean_percent
from bests t, bests d where t.method = 'fedavg-topk' and d.method = 'decomfl';
-- as DeComFL has, top 2 % needs # KiB up until 80 % and ends at # ± # %
select bytes_up_to_80 / 1024, accuracy_mean_percent, accuracy_sd_percent from bests where method = 'fedavg-1-topk';
-- not the ten steps are what makes FedAvg cheaper
select o.bytes_up_to_80 < d.bytes_up_to_80 and o.accuracy_mean_percent > d.accuracy_mean_percent
from bests o, bests d where o.method = 'fedavg-1-topk' and d.method = 'decomfl';
-- Three bits an entry cost FedAvg # points
select f.accuracy_mean_percent - q.accuracy_mean_percent from bests f, bests q where f.method = 'fedavg' and q.method = 'fedavg-quantise';
-- both ways top 2 % takes # KiB until 80 %, DeComFL #, 3 bits #.
select nth(method, 'fedavg-topk | decomfl | fedavg-quantise') as k, bytes_both_to_80 / 1024 from bests;
