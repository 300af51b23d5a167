"""Runs programs on GPUs, or on CPU devices that stand in for them."""
