"""MPI: the ranks, the collectives, and the two ends of a question. The only place that imports mpi4py."""
