"""Findings on variables that lie otherwise to the towers than a program declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.layouts import layout
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.results import Finding
from placement_checks.rules.advice import REUSE


def not_as_declared(
    placement: Placement, declared: Literal["", "central", "mirrored"]
) -> Iterator[Finding]:
    """Findings on the trainable variables of which there is one where each tower should have a
    copy, or the other way round; none if nothing is declared.
    """
    if declared == "mirrored":
        yield from _central(placement)
    elif declared == "central":
        yield from _mirrored(placement)


def _central(placement: Placement) -> Iterator[Finding]:
    analysis, layouts = analyse(placement), layout(placement)
    # A saved graph may have lost its collections: then those that gradients update.
    trainable = placement.collected.get(TRAINABLE, gradient_flow(placement).trained)
    for variable in placement.variables:
        name, readers = variable.name, layouts.readers.get(variable.name, 0)
        if name in trainable and readers.bit_count() > 1:
            yield Finding(
                object=name,
                op=placement.ops[name].type,
                evidence="requested",
                expected="a copy for each tower",
                found="one variable for several towers",
                message=f"{name} is one variable, which {analysis.names_of(readers)} read, where "
                "each is to have a copy",
                consequence="its value is sent to the other GPUs in every step",
                fix="make it once for each tower, in a variable scope of the tower's own, and "
                f"apply the same sum to all; if one is meant: --set variables-shared.allow={name}",
                alike=("central", readers),
            )


def _mirrored(placement: Placement) -> Iterator[Finding]:
    analysis = analyse(placement)
    for group in layout(placement).mirrored:
        (_, first), *others = sorted(group.of.items())
        for tower, name in others:
            yield Finding(
                object=name,
                op=placement.ops[name].type,
                evidence="requested",
                expected=f"{first}, for all towers",
                found="a copy for one tower",
                message=f"{name} is the copy that the tower on {analysis.towers[tower]} has of "
                f"{first}, where one variable is to be shared",
                consequence="every GPU holds the variable, and its slots, once more",
                fix=f"build each tower under `{REUSE}`; if copies are meant: "
                "--set variables-shared.layout=mirrored",
                alike="mirrored",
            )
