"""From a target to a built program."""
