"""Baselines: written, kept in files, and compared with a placement."""
