"""What programs are judged by: a rule a file, known to all others by its line in the registry."""
