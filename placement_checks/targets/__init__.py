"""Targets: names of builder functions, scripts and files, and how they are imported."""
