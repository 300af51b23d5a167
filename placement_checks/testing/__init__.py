"""The pytest plugin, its fixtures and the assertions."""
