"""Kernels: inner loops of problems that are faster than plain NumPy or torch."""
