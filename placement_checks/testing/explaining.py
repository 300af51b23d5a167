"""Explains to pytest why a comparison with ``==`` failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def pytest_assertrepr_compare(
    config: pytest.Config, op: str, left: object, right: object
) -> list[str] | None:
    """The lines of an explanation, of which the first is the summary; None for other types."""
    if op != "==":
        return None
    everything = config.get_verbosity() > 1
    for explained in _EXPLAINED:
        if lines := explained(left, right, everything):
            return list(lines)
    return None


def _placements(left: object, right: object, everything: bool) -> Sequence[str]:
    """Where the ops of two placements differ; empty if they are anything else."""
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.placement import Placement

    if not isinstance(left, Evidence | Placement) or not isinstance(right, Evidence | Placement):
        return ()
    from placement_checks.testing.placements_differ import differences

    return differences(Evidence.of(left).placement, Evidence.of(right).placement, everything)


# One for each kind of object: it gives nothing for those that are not its own.
_EXPLAINED: Sequence[Callable[[Any, Any, bool], Sequence[str]]] = (_placements,)
