"""Python interface of the command line: `zofl_mpi.simulate` and related functions.

A run is a function of a method, a problem, data and flags, built by the same code as on the command line (`run.build`).
"""
