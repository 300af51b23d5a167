"""Trials with hostile input: the command must lose no file, give no wrong verdict, and clean up.

Each module except `base` is a class of trials, with a function ``trials(seed, count)``.
"""
