"""One execution of a step: its schedule, and the copies between devices."""
