"""Baselines: text files that hold the placement of a program, and comparisons with them."""
