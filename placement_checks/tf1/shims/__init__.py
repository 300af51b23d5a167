"""Replacements for modules that only TensorFlow 1 has."""
