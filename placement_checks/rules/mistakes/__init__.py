"""Where in a program a mistake is that only its numbers show."""
