"""For pytest: the plugin, its fixtures and assertions."""
