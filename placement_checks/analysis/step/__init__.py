"""One execution of a step: which op waits for which, and what is copied between devices."""
