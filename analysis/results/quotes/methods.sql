-- page: zofl_mpi/methods/README.md

-- # and # G multiply-accumulates at batch 256
select nth(c1, 'HERON | CSE-FSL') as k, c9 from c_table2_txt where cells = 9;
-- # GiB in 20 rounds without heads and # with them, # in SFLV2's 16
select nth(c1, 'HERON | SFLV2') as k, c4, case c1 when 'HERON' then c5 end as with_heads from c_table2_txt where cells = 9;
-- passes hold # MiB there and SplitFed's # (#; [C]: # of #, #)
select h.c7, s.c7, h.c7 / s.c7, h.c6, s.c6, h.c6 / s.c6 from c_table2_txt h join c_table2_txt s using (cells)
where cells = 9 and h.c1 = 'HERON' and s.c1 = 'SFLV2';
-- # pairs of command and method end within # processor seconds each, and gain at least # of what the README's tuned command
select count(*), max(seconds), min(share) from first_try where method <> 'tuned';
