"""Runs a whole program in a child process until its first training step."""
