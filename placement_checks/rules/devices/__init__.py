"""Rules on where ops and variables are."""
