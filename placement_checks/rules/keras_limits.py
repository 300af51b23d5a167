"""Findings on known limits of Keras under a strategy: one finding for all affected objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding
from placement_checks.rules.base import path_lines
from placement_checks.util.text import listed

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
    """Return the finding on a known limit of a library that affects the ops ``objects``."""
    first, *others = objects
    numbers = analyze(placement).flow.number
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
    """Join distinct names; of more than four, the first four and the number of the others."""
    return listed(list(dict.fromkeys(names)), _MOST)
