"""What `diff`, `log`, `place` and `time` print."""
