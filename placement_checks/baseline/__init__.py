"""Baselines: text files with the placement of a program, and comparisons with these files."""
