"""Captures a TensorFlow 1 program in this process: its graph, sessions and GPU queries."""
