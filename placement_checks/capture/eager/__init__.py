"""Captures the training step of a TensorFlow 2 program while it runs eagerly."""
