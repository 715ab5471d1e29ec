"""Zeroth-order federated learning on MPI: the same answer, bit for bit, on any number of ranks."""

__version__ = "0.1.0"
