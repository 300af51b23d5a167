"""Baselines: a placement as a page that is kept in the repository."""
