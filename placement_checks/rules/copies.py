"""Findings on mirrored variables: copies that do not take what the others take."""

from __future__ import annotations

from collections.abc import Iterator

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.layouts import layout
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding
from placement_checks.util.text import joined


def copies_apart(placement: Placement) -> Iterator[Finding]:
    """Findings on the copies that another sum updates than the others, or none."""
    for group in layout(placement).mirrored:
        for tower, name in group.apart.items():
            yield _apart(placement, name, tower, list(group.of.values()))


def _apart(placement: Placement, name: str, tower: int, others: list[str]) -> Finding:
    analysis = analyse(placement)
    given = _update(placement, name)
    shown = joined([*others[:3], *([f"{len(others) - 3} more"] if len(others) > 3 else [])])
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected=f"an update by the same gradients as {shown}",
        found=given,
        path=tuple(
            f"{update.variable} <- {analysis.flow.names[update.op]}"
            for variable in (name, others[0])
            for update in analysis.updates.by_variable.get(variable, ())
        ),
        message=f"{name} is the copy that the tower on {analysis.towers[tower]} reads, and gets "
        f"{given}, where its copies {shown} all take the same sum",
        consequence="the copies drift apart: the towers train different models",
        fix="apply the sum of all towers' gradients to every copy",
    )


def _update(placement: Placement, name: str) -> str:
    """By what a variable is updated, as text."""
    analysis, gradients = analyse(placement), gradient_flow(placement)
    updates = gradients.trained.get(name, ())
    if not updates:
        return "no update by a gradient"
    towers = 0
    for update in updates:
        towers |= gradients.towers(update)
    if towers == analysis.all_towers:
        return "an update by another sum of gradients"
    return f"an update by the gradients of {analysis.names_of(towers) if towers else 'no tower'}"
