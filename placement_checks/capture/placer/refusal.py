"""The placer's own word that it does not place a graph."""


class Refused(Exception):
    """Carries the placer's message as it gave it."""
