"""Python interface of the command line: `zofl_mpi.simulate` and related functions.

A run is a function of a method, a problem, data and flags, built by the code of the command line (`run.command.build`).
"""
