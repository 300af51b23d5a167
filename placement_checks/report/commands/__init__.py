"""The reports of `diff`, `log`, `place` and `time`."""
