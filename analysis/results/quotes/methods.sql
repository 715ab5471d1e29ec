-- page: zofl_mpi/methods/README.md

-- # pairs of command and method end within # processor seconds each. Their test accuracy rises above chance by at least # of what
select count(*), max(seconds), min(share) from first_try where method <> 'tuned';
