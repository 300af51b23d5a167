"""Compares predicted placements with the GPUs of this machine."""
