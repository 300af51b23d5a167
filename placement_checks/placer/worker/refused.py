"""What the placer process says instead of an answer."""

from __future__ import annotations


class GraphRefused(Exception):
    """The placer does not place the graph; carries its message as it gave it."""


class Failed(Exception):
    """The placer could not be asked, or gave no sound answer; says why."""
