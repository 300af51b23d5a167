"""Runs TensorFlow 1 programs on TensorFlow 2: ``--v1``."""
