"""The errors that the placer process gives instead of an answer."""

from __future__ import annotations


class GraphRefused(Exception):
    """The placer does not place the graph; the message is its own."""


class Failed(Exception):
    """The placer could not be reached, or gave no usable answer; the message says why."""
