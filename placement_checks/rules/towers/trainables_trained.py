from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.analysis.untrained import (
    Untrained,
    is_trained,
    left_unused,
    untrained,
)
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, is_among, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class TrainablesTrained(Rule):
    """The step updates every trainable variable that a loss reads.

    A variable keeps its initial value if its gradient is averaged and not applied, or only shown
    in a summary; if no loss reads it, so that it has no gradient; or if the step of the reference
    updates it, and this one does not.

    A program that trains some of its variables on purpose takes no gradients of the others: those
    are no findings. Nor is a variable that another step updates, as of two networks that are
    trained in turn. TensorFlow computes the gradients of all inputs of an op; one that does not
    leave the backward pass was not asked for.

    A gradient that the program takes of a variable and gives to nothing may be forgotten, or be
    one of those of all variables, of which only some are meant to be applied: the rule is then not
    checked until the variable is declared.

    `frozen` lists variables, or patterns such as resnet/*, that are meant to stay.
    """

    name = "trainables-trained"
    kind = "requested"
    requires = frozenset({Need.REQUESTED, Need.VARIABLES})

    frozen: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        trainable = placement.collections.get(TRAINABLE, ())
        if not trainable:
            return self.not_checked("no variable is in TRAINABLE_VARIABLES")
        if analysis.updates.unknown:
            return self.not_checked(analysis.updates.unknown)
        if not any(analysis.backward.ops):
            return self.not_checked("the graph computes no gradients")
        if analysis.updates.by_variable.keys().isdisjoint(trainable):
            return self.not_checked("the step updates no trainable variable")
        findings = {each.variable: _finding(placement, each) for each in untrained(placement)}
        for name in _trained_in_reference(evidence):
            findings.setdefault(name, _less_than_reference(evidence, name))
        found = [each for name, each in findings.items() if not is_among(name, self.frozen)]
        unused = [name for name in left_unused(placement) if not is_among(name, self.frozen)]
        if unused and not found:
            return self.not_checked(_of_unused(unused))
        return self.verdict(found, plural(len(trainable), "trainable variable"))


def _of_unused(names: Sequence[str]) -> str:
    """Why nothing is known of variables whose gradients are taken and not used."""
    several = f"gradients of {names[0]} and {len(names) - 1} more are"
    which = several if len(names) > 1 else f"gradient of {names[0]} is"
    return (
        f"the {which} computed and not applied, and nothing tells whether that is meant; apply "
        "all, or declare what is meant to stay: "
        f"--set trainables-trained.frozen={names[0] if len(names) == 1 else 'PATTERN'}"
    )


def _trained_in_reference(evidence: Evidence) -> Iterator[str]:
    """The trainable variables that the step of the reference updates, and no step here."""
    if not evidence.reference:
        return
    ours, theirs = analyse(evidence.placement), analyse(evidence.reference)
    if theirs.updates.unknown:
        return
    for name in evidence.placement.collections[TRAINABLE]:
        if name in theirs.updates.by_variable and not is_trained(ours, name):
            yield name


def _finding(placement: Placement, variable: Untrained) -> Finding:
    name, lost = variable
    names = analyse(placement).flow.names
    why = (
        "no loss reads it, so that it has no gradient"
        if lost is None
        else f"its gradient, {names[lost]}, is computed and not applied"
    )
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected="an update in each step",
        found="no update" if lost is None else f"a gradient that ends at {names[lost]}",
        ops=() if lost is None else _where_applied(placement),
        path=() if lost is None else steps(placement, [lost]),
        alike="unread" if lost is None else "lost",
        message=f"{name} is trainable, and no step updates it: {why}",
        consequence="it keeps its initial value",
        fix=_FIX,
    )


def _less_than_reference(evidence: Evidence, name: str) -> Finding:
    reference = evidence.reference.program if evidence.reference else ""
    return Finding(
        object=name,
        op=evidence.placement.ops[name].type,
        evidence="requested",
        expected=f"an update in each step, as in {reference}",
        found="no update",
        ops=_where_applied(evidence.placement),
        message=f"{name} is trainable, and no step updates it; that of {reference} does",
        consequence="it keeps its initial value",
        fix=_FIX,
    )


def _where_applied(placement: Placement) -> tuple[str, ...]:
    """An op that applies gradients: it was built where this one might have been applied too."""
    names = analyse(placement).flow.names
    updates = next(iter(gradient_flow(placement).trained.values()), [])
    return tuple(names[update.op] for update in updates[:1])


_FIX = (
    "apply all gradients; what is meant to stay is made with trainable=False, or declared: "
    "--set trainables-trained.frozen=PATTERN"
)
