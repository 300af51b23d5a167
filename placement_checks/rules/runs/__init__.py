"""Rules on what running a program gives."""
