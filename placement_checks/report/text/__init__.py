"""A report for people: a screen of text."""
