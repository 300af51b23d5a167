"""Captures a program in this process: its graph, sessions, eager code and GPU queries."""
