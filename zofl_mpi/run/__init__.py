"""The program around an algorithm: command line, plan, ranks, rounds, results, grids of runs."""
