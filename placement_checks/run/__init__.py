"""Run programs on GPUs, or on CPU devices that simulate GPUs."""
