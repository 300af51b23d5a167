"""The reports of the commands `diff`, `doctor`, `log`, `place` and `time`."""
