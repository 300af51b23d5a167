"""Captures the training step of a program: in this process, in a child process, or eagerly."""
