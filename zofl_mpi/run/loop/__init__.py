"""Rounds of a run: execution, evaluation, recording, display, checkpoints, end."""
