from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import OpId
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import (
    GATHERS,
    LINEAR,
    REDUCTIONS,
    SUM_OF_SQUARES,
    SUMMARIES,
    VARIABLE_LOOKUPS,
    is_gradient_update,
)
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.program import Program
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.variables import Variable
from placement_checks.rules.base import (
    Fields,
    Rule,
    about,
    exact_pattern,
    first_of_each,
    path_lines,
    unless_allowed,
)
from placement_checks.rules.requirements import Need, no_gradients
from placement_checks.rules.step_equality import compare_with_one_gpu
from placement_checks.step.explanation import Obligation
from placement_checks.util.text import plural


@dataclass(frozen=True)
class TrainablesTrained(Rule):
    """The step updates every trainable variable that a loss reads.

    A variable keeps its initial value in four cases: its gradient is averaged, or shown in a
    summary, but not applied; no loss reads it, so it has no gradient; the step for one GPU updates
    it, and this step does not; or the step runs no update of any trainable variable, although the
    graph has updates by gradients. The step for one GPU is the reference, or else the same
    program built for one GPU. Both steps are read as terms, like for equal-to-one-gpu.

    A program that trains only a part of its variables on purpose takes no gradients of the other
    variables, which are not findings. Neither is a variable that another step updates, as in two
    networks that are trained alternately. TensorFlow computes the gradients of all inputs of an
    op: a gradient counts as taken only if an op outside the backward pass uses it.

    If the program takes a gradient that no op uses, this may be a mistake, or the program takes
    the gradients of all variables and applies only some of them. This is a doubt, unless `frozen`
    lists the variable.

    `frozen` lists variables, or patterns such as resnet/*, that keep their values on purpose.
    """

    name = "trainables-trained"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.UNTRAINED
    requires = frozenset({Need.REQUESTED, Need.VARIABLES})
    uses = frozenset({Need.REFERENCE, Need.SINGLE_GPU})
    intended = "these variables keep their initial values"
    threads = (
        "tensorflow/tensorflow#13403: a None gradient of a variable that no loss reads",
        "tensorpack/tensorpack#373: a warning: no gradient with respect to an embedding",
    )

    frozen: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyze(placement)
        trainable = placement.collections.get(TRAINABLE, ())
        if not trainable:
            return self.not_checked("no variable is in TRAINABLE_VARIABLES")
        if (missing := analysis.updates.missing) is not None:
            return self.without(missing)
        if not any(analysis.backward.ops):
            return self.without(no_gradients(evidence))
        if analysis.updates.by_variable.keys().isdisjoint(trainable):
            left_out = unless_allowed(_left_out(evidence), self.frozen)
            if not left_out:
                return self.not_checked("the step updates no trainable variable")
            return self.verdict(left_out, plural(len(trainable), "trainable variable"))
        findings = first_of_each(
            (
                *(_untrained(placement, *each) for each in untrained(placement)),
                *_trained_on_one_gpu(evidence),
            )
        )
        found = unless_allowed(findings, self.frozen)
        known = {finding.object for finding in found}
        unused = (name for name in without_gradient_use(placement) if name not in known)
        doubts = unless_allowed((_unused(placement, name) for name in unused), self.frozen)
        return self.verdict([*found, *doubts], plural(len(trainable), "trainable variable"))

    def intended_fields(self, _evidence: Evidence, verdict: Verdict) -> Iterator[Fields]:
        """Yield the untrained variables, in addition to the variables that are frozen."""
        untrained = [exact_pattern(finding.object) for finding in verdict.findings]
        yield {"frozen": [*self.frozen, *untrained]}


def untrained(placement: Placement) -> Iterator[tuple[str, int | None]]:
    """Find trainable variables that no step updates.

    If a loss reads a variable, and the program does not take its gradient, it is frozen on
    purpose.

    Yields:
        The name of the variable, and the last op of its gradient, or None if no loss reads the
        variable.
    """
    analysis = analyze(placement)
    for variable in _trainables_without_update(placement):
        readers = analysis.reads_by_site.readers[variable.name]
        if not any(map(analysis.reads_by_site.in_loss, readers)):
            yield variable.name, None
        elif (lost := next(_lost_gradients(analysis, variable, readers), None)) is not None:
            yield variable.name, lost


def without_gradient_use(placement: Placement) -> Iterator[str]:
    """Yield the trainable variables without an update, if their gradients are taken but unused."""
    flow, gradients = analyze(placement).flow, placement.step.gradients_by_variable
    for variable in _trainables_without_update(placement):
        ends = flow.known_ops(gradients.get(variable.name, ()))
        if ends and not any(flow.consumers[op] for op in ends):
            yield variable.name


def _trainables_without_update(placement: Placement) -> Iterator[Variable]:
    trainable = placement.collected.get(TRAINABLE, frozenset())
    for variable in placement.variables:
        if variable.name in trainable and not _is_updated(placement, variable.name):
            yield variable


def _is_updated(placement: Placement, variable: str) -> bool:
    """Whether the step updates a variable, or an op of another step updates it by a gradient."""
    is_in_step = variable in analyze(placement).updates.by_variable
    return is_in_step or any(_updates_by_gradient(placement, variable))


def _updates_by_gradient(placement: Placement, variable: str) -> Iterator[str]:
    """Yield the ops that update a variable by a gradient, in the step or outside of it."""
    analysis, gradients = analyze(placement), gradient_flow(placement)
    flow = analysis.flow
    for op, values in flow.writers.get(flow.number[variable], ()):
        behind = gradients.ancestors(Update(op, variable, values))
        if is_gradient_update(flow.types[op]) or any(map(analysis.has_gradient, behind)):
            yield flow.names[op]


def _left_out(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on variables with updates by gradients, if the step runs none of these.

    Another step may run them, as in a program that adds up gradients over several steps. So it is
    a doubt, unless a function returns this train op, and no update of it takes a gradient.
    """
    placement, program = evidence.placement, evidence.program
    returns_train_op = program and isinstance(program.program, Program)
    analysis, gradients = analyze(placement), gradient_flow(placement)
    takes_gradients = any(
        any(map(analysis.has_gradient, gradients.ancestors(update)))
        for updates in analysis.updates.by_variable.values()
        for update in updates
    )
    for name in placement.collections[TRAINABLE]:
        for op in [*_updates_by_gradient(placement, name)][:1]:
            message = f"{name} is trainable, and the step does not run {op}, which updates it"
            yield _finding(
                placement,
                name,
                message,
                ops=(op,),
                fix=f"run it in each step: add it to the train op, such as by tf.group; {_FROZEN}",
                group_key="left out",
                is_doubt=takes_gradients or not returns_train_op,
            )


_LOOKUPS = VARIABLE_LOOKUPS | GATHERS


def _lost_gradients(
    analysis: TowerAnalysis, variable: Variable, readers: Sequence[OpId]
) -> Iterator[int]:
    """Yield the last ops of a variable's gradients that the program takes but does not apply.

    TensorFlow computes the gradients of all inputs of an op. The program takes a gradient if an op
    outside the backward pass uses it. Neither a summary of a gradient's norm nor a global norm
    that scales all gradients applies the gradient.
    """
    flow, backward = analysis.flow, analysis.backward
    reading = set(readers)
    outputs = analysis.placement.details.outputs
    gradients = {
        op
        for op, (forward, _) in backward.forward.items()
        if forward in reading
        if flow.types[forward] in _LOOKUPS
        or any(output.shape == variable.shape for output in outputs(flow.names[op]))
    }

    def scaled(op: OpId) -> Iterator[OpId]:
        kinds = LINEAR | REDUCTIONS
        return (consumer for consumer in flow.consumers[op] if flow.types[consumer] in kinds)

    for op in sorted(flow.reachable(gradients, along=scaled)):
        consumers = flow.consumers[op]
        if (consumers or not backward.ops[op]) and all(
            flow.types[consumer] in SUMMARIES
            or (
                flow.types[consumer] == SUM_OF_SQUARES
                and not analysis.reads_by_site.in_loss(consumer)
            )
            for consumer in consumers
        ):
            yield op


def _finding(placement: Placement, name: str, message: str, **fields: Any) -> Finding:
    """Return the finding on a variable, at an op that applies gradients, to which it adds one."""
    names = analyze(placement).flow.names
    updates = next(iter(gradient_flow(placement).trained.values()), [])
    defaults = {"ops": tuple(names[update.op] for update in updates[:1]), "fix": _APPLY_ALL}
    return Finding(
        **about(placement.ops[name]),
        message=message,
        consequence="it keeps its initial value",
        **{**defaults, **fields},
    )


def _untrained(placement: Placement, name: str, lost: int | None) -> Finding:
    message = f"{name} is trainable, and no step updates it: "
    if lost is None:
        message += "no loss reads it, so it has no gradient"
        return _finding(placement, name, message, ops=(), fix=_USE_IT)
    message += f"its gradient, {analyze(placement).flow.names[lost]}, is computed and not applied"
    return _finding(placement, name, message, path=path_lines(placement, [lost]))


def _unused(placement: Placement, name: str) -> Finding:
    message = f"the gradient of {name} is computed, and no op uses it: no step updates {name}"
    return _finding(placement, name, message, is_doubt=True)


def _trained_on_one_gpu(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on variables that only the step for one GPU updates."""
    placement = evidence.placement
    trainable = placement.collections[TRAINABLE]
    if all(_is_updated(placement, name) for name in trainable):
        return
    found = compare_with_one_gpu(evidence)
    if isinstance(found, Missing):
        return
    one_gpu, equality = found
    names = {copy: name for name, copies in equality.copies.items() for copy in copies}
    for name in trainable:
        answer = equality.variables.get(names.get(name, name))
        difference = answer.difference if answer else None
        if difference is None or difference.obligation is not Obligation.UPDATED:
            continue
        if _is_updated(placement, name) or difference.excuse:
            continue
        where = one_gpu.program
        if one_gpu is evidence.single_gpu:
            where = "the same program for one GPU"
        message = f"{name} is trainable, and no step updates it; the step of {where} does"
        yield _finding(placement, name, message, group_key="trained on one GPU")


_FROZEN = (
    "for a variable that must not change, pass trainable=False when you create it, or declare it: "
    "--set trainables-trained.frozen=PATTERN"
)
_APPLY_ALL = f"apply all gradients; {_FROZEN}"
_USE_IT = f"let the loss use the variable, or delete it; {_FROZEN}"
