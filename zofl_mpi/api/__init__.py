"""The Python interface: a run is a function of a method, a problem, data, and the command line's flags.

`zofl_mpi.simulate` and its kin; every run is built and led by the same code as on the command line (`run.build`).
"""
