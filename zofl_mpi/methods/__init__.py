"""The papers' methods and their baselines, one per file."""
