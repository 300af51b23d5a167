from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import (
    GATHERS,
    LINEAR,
    SUM_OF_SQUARES,
    SUMMARIES,
    VARIABLE_LOOKUPS,
    is_gradient_update,
)
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.variables import Variable
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural

_LOOKUPS = VARIABLE_LOOKUPS | GATHERS


class Untrained(NamedTuple):
    """A trainable variable that no step updates.

    Attributes:
        variable: its name.
        lost: the last op of its gradient, which nothing takes; None if no loss reads it.
    """

    variable: str
    lost: int | None


def untrained(placement: Placement) -> Iterator[Untrained]:
    """The trainable variables that no step updates, though a gradient is computed or cannot be.

    A variable that a loss reads, and of which the program takes no gradient, is frozen on purpose.
    """
    analysis = analyse(placement)
    trainable = placement.collected.get(TRAINABLE, frozenset())
    for variable in placement.variables:
        name = variable.name
        if name not in trainable or is_trained(analysis, name):
            continue
        readers = analysis.reads_by_gpu.readers[name]
        if not any(map(analysis.reads_by_gpu.in_loss, readers)):
            yield Untrained(name, None)
        elif (lost := next(_lost_gradients(analysis, variable, readers), None)) is not None:
            yield Untrained(name, lost)


def without_gradient_use(placement: Placement) -> Iterator[str]:
    """The trainable variables that no step updates, and whose gradients nothing takes.

    The program took them, if only as those of all its variables.
    """
    analysis = analyse(placement)
    flow = analysis.flow
    trainable = placement.collected.get(TRAINABLE, frozenset())
    for name in (each.name for each in placement.variables if each.name in trainable):
        taken = [flow.number[op] for op in placement.step.taken.get(name, ()) if op in flow.number]
        used = any(flow.consumers[op] for op in taken)
        if taken and not used and not is_trained(analysis, name):
            yield name


def is_trained(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether the step updates a variable, or an op of another step does by its gradient."""
    flow = analysis.flow
    return variable in analysis.updates.by_variable or any(
        is_gradient_update(flow.types[op])
        or any(analysis.towers_behind[value] & analysis.gradient_bit for value in values)
        for op, values in flow.writers.get(flow.number[variable], ())
    )


def _lost_gradients(
    analysis: TowerAnalysis, variable: Variable, readers: Sequence[int]
) -> Iterator[int]:
    """The ops that end gradients of a variable which the program takes and does not apply.

    TensorFlow computes the gradients of all inputs of an op, whether they are asked for or not:
    one was asked for if it is brought out of the backward pass. Its norm is shown, or scales the
    gradients of all variables; that applies it to none.
    """
    flow, backward = analysis.flow, analysis.backward
    reading = set(readers)
    seen = {
        op
        for op, (forward, _) in backward.forward.items()
        if forward in reading and _is_gradient(analysis, op, forward, variable)
    }
    todo = sorted(seen)
    for op in todo:
        takers = flow.consumers[op]
        shown = [taker for taker in takers if _only_shows(analysis, taker)]
        if len(shown) == len(takers) and (shown or not backward.ops[op]):
            yield op
        further = [taker for taker in takers if flow.types[taker] in LINEAR and taker not in seen]
        seen.update(further)
        todo += further


def _only_shows(analysis: TowerAnalysis, taker: int) -> bool:
    """Whether what takes a gradient shows it, or its norm; one that is part of a loss is a use."""
    kind = analysis.flow.types[taker]
    return kind in SUMMARIES or (
        kind == SUM_OF_SQUARES and not analysis.reads_by_gpu.in_loss(taker)
    )


def _is_gradient(analysis: TowerAnalysis, op: int, forward: int, variable: Variable) -> bool:
    """Whether the gradient op of a reader may yield the variable's gradient, by its shape."""
    outputs = analysis.placement.details.outputs(analysis.flow.names[op])
    return analysis.flow.types[forward] in _LOOKUPS or any(
        output.shape == variable.shape for output in outputs
    )


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
        found = [each for name, each in findings.items() if not matches_any(name, self.frozen)]
        unused = [
            name for name in without_gradient_use(placement) if not matches_any(name, self.frozen)
        ]
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
        path=() if lost is None else path_lines(placement, [lost]),
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
