"""Report formats for GitHub, code scanning, JUnit viewers and pull request comments."""
