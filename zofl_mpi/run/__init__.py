"""The program around a method: command line, plan, ranks, rounds, results, grids of runs."""
