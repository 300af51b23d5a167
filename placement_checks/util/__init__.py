"""Helpers for processes, imports, streams, progress and text, without TensorFlow graphs."""
