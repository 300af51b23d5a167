"""Assign a device to every op of a built program."""
