from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.variables.accumulators import accumulators
from placement_checks.core.evidence import Evidence
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import (
    MERGE_SUMMARY,
    SCALAR_SUMMARIES,
    SUMMARIES,
    SUMMARY_WRITES,
    VARIABLES,
)
from placement_checks.core.placement import producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    Rule,
    about,
    path_lines,
    repetitions,
    unless_allowed,
)
from placement_checks.rules.gradient_mistakes import loss_terms
from placement_checks.rules.ranks import ranks_of
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_selection, built_once


@dataclass(frozen=True)
class LossOfAllTowers(Rule):
    """The reported loss includes every tower's loss, and no summary is repeated in each tower.

    After a loop over towers, the Python variables of the loop refer to the last tower. If the
    program prints the loss of the last tower, the number looks right, except for the noise of a
    smaller batch.

    The rule judges the `loss` that the function returns (a list counts as one loss), and scalar
    summaries of losses. It does not judge metrics, such as the loss that `model.fit` prints.

    If one line builds a summary of examples in every tower, there are N curves of one quantity.
    Summaries of shared variables are equal in all towers, and are not findings. Under a strategy
    only the first replica writes summaries.

    `allow` lists summaries, or patterns such as tower_3/*, that show one tower on purpose.
    """

    name = "loss-of-all-towers"
    kind = "requested"
    impact = Impact.TRAINING
    requires = frozenset({Need.TWO_TOWERS})
    intended = "these losses and summaries show one tower"
    threads = ("tensorflow/tensorflow#2994: the CIFAR-10 tutorial prints the last tower's loss",)

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        if ranks_of(placement):
            return self.not_checked(
                "each rank of Horovod reports the loss of its own rows, as most programs do; "
                "hvd.allreduce(loss) is the loss of all ranks"
            )
        analysis = analyze(placement)
        summaries = _written_summaries(analysis)
        reported = [producer_of(name) for name in placement.step.losses]
        of_losses = list(_loss_summaries(analysis, summaries))
        findings = list(_repeated_summaries(analysis, summaries))
        if not reported and not of_losses and not findings:
            if placement.step.traced and (metric := _metric_of_loss(analysis)):
                return self.not_checked(
                    "the training step returns no number that is computed from its loss; it adds "
                    f"the loss to {metric}, and metrics are not judged"
                )
            return self.without(_NOT_RETURNED if placement.step.traced else _NOT_KNOWN)
        findings += _partial_loss(analysis, [analysis.flow.number[name] for name in reported])
        objects = {finding.object for finding in findings}
        repeated = {op: finding for finding in findings for op in finding.ops}
        for op in of_losses:
            name = analysis.flow.names[op]
            if name in objects:
                continue
            for finding in _partial_loss(analysis, [op]):
                if (cause := repeated.get(name)) is not None:  # the same line, and the same fix
                    finding = replace(
                        finding,
                        consequence=cause.consequence,
                        fix=cause.fix,
                        group_key=cause.group_key,
                        frames=(),
                    )
                findings.append(finding)
        return self.verdict(
            unless_allowed(findings, self.allow),
            f"losses: {len(reported)} returned, {len(of_losses)} in summaries",
        )


def _written_summaries(analysis: TowerAnalysis) -> list[OpId]:
    """Return the summaries that are written: only merged summaries, if the program merges any.

    Under a strategy TensorFlow writes only the summaries of the first replica.
    """
    types = analysis.flow.types
    summaries = analysis.flow.having(SUMMARIES.__contains__)
    if analysis.placement.strategy is not None:
        summaries = [op for op in summaries if _tower_of_summary(analysis, op) in (None, 0)]
    merged = {
        op
        for op in summaries
        if any(types[consumer] == MERGE_SUMMARY for consumer in analysis.flow.consumers[op])
    }
    return [op for op in summaries if not merged or op in merged or types[op] in SUMMARY_WRITES]


def _tower_of_summary(analysis: TowerAnalysis, summary: OpId) -> TowerIndex | None:
    """Return the tower that a summary shows; None if it shows several, or none."""
    tower = single_tower(analysis.towers_of(summary))
    return analysis.tower_of[summary] if tower is None else tower


def _loss_summaries(analysis: TowerAnalysis, summaries: list[OpId]) -> Iterator[OpId]:
    flow = analysis.flow
    if any(analysis.losses.by_tower):
        depends_on_loss = flow.propagate(flow.marks(analysis.losses.by_tower))
        for op in summaries:
            if flow.types[op] in SCALAR_SUMMARIES and depends_on_loss[op]:
                yield op


def _metric_of_loss(analysis: TowerAnalysis) -> str:
    """Return the first variable that the step adds a loss to; ``""`` if there is none.

    Keras 2 adds the loss of a replica before it divides the loss by the number of replicas.
    """
    flow, metrics = analysis.flow, accumulators(analysis.placement).names
    terms = loss_terms(flow, chain(*analysis.losses.by_tower))
    depends_on_loss = flow.propagate(flow.marks([terms]))
    return next(
        (
            variable.name
            for variable in analysis.placement.variables
            if variable.name in metrics
            for _, values in flow.writers.get(flow.number[variable.name], ())
            if any(depends_on_loss[value] for value in values)
        ),
        "",
    )


def _partial_loss(analysis: TowerAnalysis, ops: list[OpId]) -> Iterator[Finding]:
    """Yield a finding if a loss, in one tensor or several, does not depend on every tower."""
    placement = analysis.placement
    read = analysis.towers_of(*ops)
    if not read or read == analysis.all_towers:
        return
    name, kind = analysis.flow.names[ops[-1]], analysis.flow.types[ops[-1]]
    towers = analysis.names_of(read)
    path = analysis.flow.path(ops[-1], lambda op: bool(analysis.own_towers[op]))
    yield Finding(
        **about(placement.ops[name]),
        path=path_lines(placement, path),
        message=f"{name} ({kind}) reports only the loss of {towers}; it does not depend on "
        f"{analysis.names_of(analysis.all_towers ^ read)}",
        devices=analysis.devices_of(analysis.all_towers),
        consequence="the reported number looks like the loss of the batch, but is the loss of a "
        "part of it",
        fix="append each tower's loss to a list in the loop, and report "
        "tf.add_n(losses) / num_gpus after it"
        if placement.strategy is None
        else "report the loss of all replicas: strategy.reduce('SUM', loss, axis=None), or 'MEAN' "
        "if each replica's loss is the mean of its rows",
        group_key=read,
        frames=blame_selection(placement, (name,), built_once(placement)),
    )


def _repeated_summaries(analysis: TowerAnalysis, summaries: list[OpId]) -> Iterator[Finding]:
    flow, placement = analysis.flow, analysis.placement
    by_line = (
        ((flow.types[op], frames), tower, op)
        for op in summaries
        if (tower := _tower_of_summary(analysis, op)) is not None
        and (frames := tuple(placement.details.frames(flow.names[op])))
    )
    for first, summary, _, copy in repetitions(by_line):
        if _show_same_variable(analysis, summary, copy):
            continue
        name, original = flow.names[copy], flow.names[summary]
        yield Finding(
            **about(placement.ops[name]),
            ops=(name, original),
            path=path_lines(placement, [summary, copy]),
            message=f"each tower writes its own summary: the line that builds {name} also "
            f"builds {original} for the tower on {analysis.towers[first]}",
            consequence="each curve shows one tower's part of each batch, and no curve "
            "shows the whole batch",
            fix="write one summary of the mean after the loop: tf.add_n(values) / num_gpus; or "
            "write it in one tower only, and allow it: --set loss-of-all-towers.allow=PATTERN",
            devices=analysis.towers[first].devices,
        )


def _show_same_variable(analysis: TowerAnalysis, summary: OpId, other: OpId) -> bool:
    """Whether two summaries show the same variable, and nothing that depends on examples."""
    flow = analysis.flow
    shown, other_shown = (
        {each for each in flow.reachable([op]) if flow.types[each] in VARIABLES}
        for op in (summary, other)
    )
    return not (analysis.examples[summary] or analysis.examples[other]) and shown == other_shown


_NOT_KNOWN = Missing(
    "the program returns no loss, and the step fetches none",
    "fetch it with the train op, or return it from the function that builds the graph: "
    "{'loss': loss}",
)
_NOT_RETURNED = Missing(
    "the training step returns no number that is computed from its loss",
    "return the loss from the step",
)
