"""What Keras is known to do under a strategy by itself, told once for all that it does it to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding
from placement_checks.rules.base import path_lines
from placement_checks.util.text import join_and

KERAS = "Keras 3"
_MOST = 4  # names in a message


def keras_limit_finding(
    placement: Placement,
    objects: Sequence[str],
    message: str,
    consequence: str,
    fix: str,
    *,
    expected: str,
    found: str,
    library: str = KERAS,
) -> Finding:
    """The finding on what a library does to some objects."""
    first, *others = objects
    numbers = analyse(placement).flow.number
    return Finding(
        object=first,
        op=placement.ops[first].type,
        evidence="requested",
        expected=expected,
        found=found,
        path=path_lines(placement, [numbers[name] for name in objects]),
        message=message,
        consequence=consequence,
        fix=fix,
        known=library,
        others=tuple(others),
    )


def shorten(names: Iterable[str]) -> str:
    """Some names, each once; of many the first, and how many there are more."""
    each = list(dict.fromkeys(names))
    return join_and(each if len(each) <= _MOST else [*each[:_MOST], f"{len(each) - _MOST} more"])
