"""The step of a program, compared with the step of one GPU, for the rules that ask about it."""

from __future__ import annotations

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.evidence import Evidence
from placement_checks.core.ids import TowerIndex
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Placement
from placement_checks.step.comparison import StepEquality, compare_steps
from placement_checks.step.parts import Part


def compare_with_one_gpu(evidence: Evidence) -> tuple[Placement, StepEquality] | Missing:
    """The program for one GPU, and the comparison.

    It is the reference, if this trains variables of the program; else the program's own build.
    """
    if evidence.reference:
        found = compare_steps(evidence.placement, evidence.reference)
        if (found and found.trained) or not evidence.single_gpu:
            return found if isinstance(found, Missing) else (evidence.reference, found)
    if isinstance(evidence.single_gpu, Missing):
        return evidence.single_gpu
    found = compare_steps(evidence.placement, evidence.single_gpu)
    return found if isinstance(found, Missing) else (evidence.single_gpu, found)


def towers_by_part(placement: Placement, found: StepEquality) -> dict[Part, TowerIndex]:
    """The tower that computes the loss of each part of the batch."""
    analysis = analyze(placement)
    towers = {
        part: analysis.tower_of[analysis.flow.op_of(objective)]
        for objective, part in found.parts.items()
    }
    return {part: tower for part, tower in towers.items() if tower is not None}
