"""Rules on the devices of ops and variables."""
