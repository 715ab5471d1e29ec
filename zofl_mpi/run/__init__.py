"""Everything that is not mathematics: random streams, messages, clients, MPI, devices, results, the loop, the command line."""
