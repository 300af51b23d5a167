"""A report for other programs: GitHub, code scanning, JUnit viewers, comments."""
