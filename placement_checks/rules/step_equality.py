"""The step of a program, compared with the step of one GPU, for the rules that ask about it."""

from __future__ import annotations

from collections.abc import Sequence

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.ids import TowerIndex
from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import Diagnosis
from placement_checks.core.placement import Placement
from placement_checks.rules.ranks import tower_kind
from placement_checks.step.comparison import TOWERS, StepEquality, compare_steps
from placement_checks.step.explanation import Difference, Obligation
from placement_checks.step.parts import Part
from placement_checks.step.weights import Weights

TOWERS_ON_ONE_GPU = "the program has several towers even if built for one GPU"


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
    towers, of_one = (analyze(x).towers for x in (evidence.placement, evidence.single_gpu))
    if 1 < len(of_one) >= len(towers):
        return Missing(TOWERS_ON_ONE_GPU)
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


def towers_left_out(placement: Placement, found: StepEquality, name: str) -> Sequence[TowerIndex]:
    """The towers whose rows do not count in the update of a variable; empty if unknown."""
    weights = found.weights.get(name)
    terms = weights.examples if isinstance(weights, Weights) else ()
    return [
        tower
        for part, tower in towers_by_part(placement, found).items()
        if terms and part in terms[0].ratios and not any(term.ratios[part] for term in terms)
    ]


# The mistake that a difference shows, if nothing more is known about it.
_MISTAKES = {
    Obligation.FUNCTION: mistakes.OTHER_FUNCTION,
    Obligation.ROWS: mistakes.SAME_ROWS,
    Obligation.ADDITIVE: mistakes.FIRST_DIFFERENCE,
    Obligation.WEIGHTS: mistakes.PART_LEFT_OUT,
    Obligation.UPDATE: mistakes.FIRST_DIFFERENCE,
    Obligation.UPDATED: mistakes.NOT_UPDATED,
}


def mistake_of(placement: Placement, difference: Difference, declared: str = "") -> Diagnosis:
    """Return the mistake that a difference from one GPU shows.

    Args:
        placement: the program for several GPUs.
        difference: the difference.
        declared: how to declare it as intended.
    """
    mistake = difference.mistake or _MISTAKES[difference.obligation]
    origin = difference.origin
    ops = (origin.op,) if origin and origin.program == TOWERS else ()
    kind = tower_kind(placement)
    return mistake.stated(kind, text=difference.text, ops=ops, declared=declared)


def difference_from_reference(evidence: Evidence, variable: str) -> Difference | None:
    """Return the first difference of a variable's update from the reference.

    It is None if there is none, or if the steps cannot be compared.
    """
    if not evidence.reference:
        return None
    found = compare_steps(evidence.placement, evidence.reference)
    if isinstance(found, Missing):
        return None
    names = [name for name, copies in found.copies.items() if variable in copies]
    answer = found.variables.get(names[0] if names else variable)
    return answer.difference if answer else None


def explain_numbers(evidence: Evidence, variable: str) -> Diagnosis | None:
    """Explain why a variable gets other numbers than in the reference, by the proof of the step.

    The proof compares the graphs, and states the first difference of both updates. Without a
    measured difference, many such differences would prove nothing: other ops may compute the same.
    If an op on the way cannot be followed, the mistake is only narrowed down to its term.
    """
    difference = difference_from_reference(evidence, variable)
    if difference is None:
        return None
    if difference.excuse and difference.mistake is None:
        difference = difference._replace(mistake=mistakes.NARROWED)
    declared = "if another one is intended: --set weights-equal.allow=VARIABLE"
    is_setting = difference.mistake is mistakes.SETTING
    return mistake_of(evidence.placement, difference, declared if is_setting else "")
