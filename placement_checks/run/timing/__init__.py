"""Timing of training loops, and traces of single steps."""
