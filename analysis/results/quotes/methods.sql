-- page: zofl_mpi/methods/README.md

-- # pairs of command and method end within # processor seconds each. Test accuracy minus chance is at least # % of what
select count(*), max(seconds), floor(100 * min(share)) from first_try where method <> 'tuned';
