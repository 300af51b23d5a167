"""Findings on mistakes of the catalog (`core.mistakes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placement_checks.core.mistakes import Mistake
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding
from placement_checks.rules.base import about, path_lines
from placement_checks.rules.ranks import tower_kind


def state_mistake(
    placement: Placement,
    subject: str,
    mistake: Mistake,
    stated: Mapping[str, Any],
    path_ops: Sequence[int] = (),
    /,
    **fields: Any,
) -> Finding:
    """Return the finding on an op or variable that shows a mistake.

    Args:
        placement: the program.
        subject: the name of the op, or of another object.
        mistake: the entry of the catalog.
        stated: the facts that its texts insert.
        path_ops: the ops of the path.
        fields: other fields of the finding.
    """
    found = mistake.stated(tower_kind(placement), **stated)
    subject_op = placement.ops.get(subject, subject)
    path = path_lines(placement, path_ops)
    return Finding(**about(subject_op), **found.texts, **{"path": path, **fields})
