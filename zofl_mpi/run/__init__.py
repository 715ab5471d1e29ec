"""Everything that is not mathematics: streams, messages, clients, MPI, devices, results, the loop, the command line."""
