"""Rules on the results of running a program."""
