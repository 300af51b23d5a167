"""Processes, streams and text; nothing of this field."""
