"""A training step as terms, and the proof that it is the step of one GPU."""
