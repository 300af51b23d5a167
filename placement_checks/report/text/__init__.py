"""The text report for terminals."""
