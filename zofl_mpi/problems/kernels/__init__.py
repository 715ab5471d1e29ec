"""Kernels: inner loops of problems, where plain NumPy or torch is not the fastest."""
