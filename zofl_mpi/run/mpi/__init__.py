"""MPI: the ranks, the collectives, and the two ends of a question. Only `world` imports mpi4py."""
