"""What computes the inner loops of a problem, where plain NumPy or torch is not the fastest."""
