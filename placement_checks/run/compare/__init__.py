"""Runs a program and its reference on the same rows and measures their differences."""
