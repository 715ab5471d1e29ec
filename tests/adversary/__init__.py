"""Trials that try to break what stands, by kind and with counts: `python -m tests.adversary [KIND ...]`.

A kind is a module of this folder with `trials(folder)`, which yields (name, trial); a trial returns "" if the program
held, else what broke. They take up to half an hour a kind, so the suite does not run them.
"""
