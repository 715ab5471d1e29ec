"""Trials that try to break runs and their files."""
