"""Processes, streams, progress and text; nothing of this field."""
