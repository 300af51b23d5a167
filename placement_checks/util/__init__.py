"""Helpers for processes, streams, progress and text that know nothing of TensorFlow graphs."""
