"""Proves that a training step is the step at a git revision, or states why it is not proved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.inputs import towers_reading
from placement_checks.baseline.compare import renamed_variables
from placement_checks.core.baseline import Difference
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Placement
from placement_checks.core.revisions import ChangedVariable, TrainingChange, TrainingState
from placement_checks.step.comparison import TOWERS, Equality, State
from placement_checks.step.revisions import Revision, compare_revisions

_STATES: Mapping[State, TrainingState] = {
    State.PROVED: "proved",
    State.DIFFERS: "different",
    State.UNKNOWN: "not-checked",
}


def compare_training(old: Placement, new: Placement, revision: str) -> TrainingChange:
    """Compare the training step of a program with its step at a revision.

    Args:
        old: the program at the revision, with assigned devices.
        new: the program now, with assigned devices.
        revision: the name of the revision.

    Raises:
        InputError: a placement lacks assigned devices.
    """
    analysis = analyze(old)

    def reading(name: str) -> Collection[int]:
        outputs = range(max(1, len(old.details.outputs(name))))
        return frozenset[int]().union(
            *[towers_reading(analysis, f"{name}:{output}") for output in outputs]
        )

    names = {name: was for was, name in renamed_variables(old, new).items()}
    at = Revision(old, f"at {revision}", names, reading, len(analysis.towers))
    found = compare_revisions(new, at)
    if isinstance(found, Missing):
        return TrainingChange(reason=found.reason)
    if not found.trained:
        return TrainingChange(reason="the step trains no variable")
    variables = [_changed(new, name, answer) for name, answer in found.variables.items()]
    is_proved = any(each.state == "proved" for each in variables)
    assumed = sorted(assumption.value for assumption in found.assumed) if is_proved else ()
    return TrainingChange(variables, assumed)


def without_proved_objectives(difference: Difference, training: TrainingChange) -> Difference:
    """Turn changes of objectives into notes, for variables whose new values are proved equal."""
    proved = {each.name for each in training.variables if each.state == "proved"}
    same = [
        each
        for each in difference.moved
        if each.kind == "objective" and proved.issuperset(each.ops)
    ]
    return replace(
        difference,
        moved=[each for each in difference.moved if each not in same],
        notes=[
            *difference.notes,
            *(f"{each.what}: {each.old} -> {each.new}, with equal values" for each in same),
        ],
    )


def _changed(placement: Placement, name: str, answer: Equality) -> ChangedVariable:
    difference, state = answer.difference, _STATES[answer.state]
    if difference is None:
        return ChangedVariable(name, state)
    origin = difference.origin
    op = origin.op if origin is not None and origin.program == TOWERS else ""
    return ChangedVariable(name, state, difference.text, placement.where(op) if op else None)
