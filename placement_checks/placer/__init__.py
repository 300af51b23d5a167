"""From a built program to the device of every op."""
