"""How the towers of a placement are wired: what depends on what, read from the graph alone."""
