"""Find the rules of other distributions, which declare them as entry points::

    [project.entry-points."placement_checks.rules"]
    embeddings-on-gpu = "our_rules:EmbeddingsOnGpu"

This module does not import them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

_GROUP = "placement_checks.rules"


@cache
def discover(built_in: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Return the entry points by the names of their rules, in alphabetical order.

    Args:
        built_in: the names of the rules of this package. If an entry point has the same name as
            one of these, or as an earlier entry point, its rule is named ``name (distribution)``.
    """
    by_name: dict[str, EntryPoint] = {}
    found = entry_points(group=_GROUP)
    for entry in sorted(found, key=lambda each: (each.name, distribution(each))):
        is_taken = entry.name in built_in or entry.name in by_name
        by_name[f"{entry.name} ({distribution(entry)})" if is_taken else entry.name] = entry
    return by_name


def distribution(entry: EntryPoint) -> str:
    """Return the name of the distribution that declares an entry point."""
    return entry.dist.name if entry.dist else "an unknown distribution"
