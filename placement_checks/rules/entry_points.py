"""Finds the rules of other distributions, which name them as entry points::

    [project.entry-points."placement_checks.rules"]
    embeddings-on-gpu = "our_rules:EmbeddingsOnGpu"

Nothing of them is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

_GROUP = "placement_checks.rules"


@cache
def discover(own: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """The entry points by the names of their rules, in the order of these.

    Args:
        own: the names of the rules of this package. Where one of these is taken, or that of
            another distribution, the entry point is known as ``name (distribution)``.
    """
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(
        entry_points(group=_GROUP), key=lambda each: (each.name, distribution(each))
    ):
        is_taken = entry.name in own or entry.name in by_name
        by_name[f"{entry.name} ({distribution(entry)})" if is_taken else entry.name] = entry
    return by_name


def distribution(entry: EntryPoint) -> str:
    """The distribution of an entry point."""
    return entry.dist.name if entry.dist else "an unknown distribution"
