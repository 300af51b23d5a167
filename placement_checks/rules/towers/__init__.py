"""Rules on what towers read, compute and update."""
