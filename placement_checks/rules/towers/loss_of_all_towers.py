from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.variables.accumulators import accumulators
from placement_checks.analysis.variables.reported_losses import are_equal, reported_losses
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import (
    IDENTITIES,
    MERGE_SUMMARY,
    SCALAR_SUMMARIES,
    SUMMARIES,
    SUMMARY_WRITES,
    VARIABLES,
)
from placement_checks.core.placement import Op, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    Rule,
    about,
    path_lines,
    repetitions,
    unless_allowed,
)
from placement_checks.rules.ranks import ranks_of
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_selection, built_once
from placement_checks.util.text import listed


@dataclass(frozen=True)
class LossOfAllTowers(Rule):
    """The reported loss includes every tower's loss, and no summary is repeated in each tower.

    After a loop over towers, the Python variables of the loop refer to the last tower. If the
    program prints the loss of the last tower, the number looks right, except for the noise of a
    smaller batch.

    The rule judges the `loss` that the function returns, and scalar summaries of losses. It does
    not judge metrics, such as the loss that `model.fit` prints. If the function returns a list,
    numbers of several towers count as one loss if they are the losses of the towers, or the same
    function of the rows of each tower. A number of one tower is no finding if another number of
    the list adds up or averages this number of all towers.

    The losses are read as terms, like for equal-to-one-gpu. If a number is computed from the loss
    of every tower, it must count them equally, or by their shares of the rows. If the graph does
    not state how many rows each tower has, unequal numbers are not checked. Under a strategy, a
    mean of the replicas' losses is a finding if each loss is a sum over rows divided by a
    constant, and the step adds up their gradients: then the loss of the batch is the sum.

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
        reported = [name for name in placement.step.losses if producer_of(name) in placement.ops]
        of_losses = list(_loss_summaries(analysis, summaries))
        values = [*reported, *(_value_of_summary(analysis, op) for op in summaries)]
        findings = list(_repeated_summaries(analysis, summaries, values))
        if not reported and not of_losses and not findings:
            if placement.step.traced and (metric := _metric_of_loss(analysis)):
                return self.not_checked(
                    "the training step returns no number that is computed from its loss; it adds "
                    f"the loss to {metric}, and metrics are not judged"
                )
            return self.without(_NOT_RETURNED if placement.step.traced else _NOT_KNOWN)
        numbers = _Numbers(analysis)
        findings += numbers.returned(reported)
        objects = {finding.object for finding in findings}
        repeated = {op: finding for finding in findings for op in finding.ops}
        for op in of_losses:
            name = analysis.flow.names[op]
            if name in objects:
                continue
            for finding in numbers.in_summary(op):
                if (cause := repeated.get(name)) is not None:  # the same line, and the same fix
                    finding = replace(
                        finding,
                        consequence=cause.consequence,
                        fix=cause.fix,
                        group_key=cause.group_key,
                        frames=(),
                    )
                findings.append(finding)
        findings = unless_allowed(findings, self.allow)
        if numbers.unread and not findings:
            return self.not_checked("; ".join(dict.fromkeys(numbers.unread)))
        return self.verdict(
            findings, f"losses: {len(reported)} returned, {len(of_losses)} in summaries"
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


def _value_of_summary(analysis: TowerAnalysis, summary: OpId) -> str:
    """Return the tensor that a summary shows: the input that is computed from examples."""
    inputs = analysis.placement.by_number[summary].inputs
    shown = [
        tensor
        for tensor in inputs
        if (op := analysis.flow.number.get(producer_of(tensor))) is not None
        and not tensor.startswith("^")
        and analysis.examples[op]
    ]
    return shown[0] if shown else analysis.flow.names[summary]


def _metric_of_loss(analysis: TowerAnalysis) -> str:
    """Return the first variable that the step adds a loss to; ``""`` if there is none.

    Keras 2 adds the loss of a replica before it divides the loss by the number of replicas.
    """
    flow, metrics = analysis.flow, accumulators(analysis.placement).names
    losses = reported_losses(analysis.placement)
    return next(
        (
            variable.name
            for variable in analysis.placement.variables
            if variable.name in metrics
            for _, values in flow.writers.get(flow.number[variable.name], ())
            if any(losses.contains_loss(value) for value in values)
        ),
        "",
    )


class _Numbers:
    """The numbers that a program reports as losses.

    Attributes:
        unread: why numbers cannot be judged.
    """

    def __init__(self, analysis: TowerAnalysis) -> None:
        self._analysis = analysis
        self._placement = analysis.placement
        self._losses = reported_losses(analysis.placement)
        self.unread: list[str] = []

    def returned(self, tensors: Sequence[str]) -> Iterator[Finding]:
        """Yield the findings on numbers that the program returns.

        The numbers of several towers may be a list of one loss. A number of some towers is right
        if another number shows the same loss of all towers.
        """
        alike: dict[Hashable, list[str]] = defaultdict(list)
        for tensor in tensors:
            towers = self._towers(tensor)
            if towers == self._analysis.all_towers:
                yield from self._counted(tensor)
            elif towers:
                value = self._losses.of_one_tower(tensor)
                is_loss = self._losses.is_loss_of_tower(tensor)
                alike["" if is_loss else value[0] if value else tensor].append(tensor)
        partial = [
            each
            for each in alike.values()
            if not self._are_all(each) and not self._is_shown(each[-1], tensors)
        ]
        if partial and not self._are_all(list(chain(*partial))):
            for of_some in partial:
                yield self._partial(of_some[-1], self._towers(*of_some))

    def in_summary(self, op: OpId) -> Iterator[Finding]:
        """Yield the findings on a summary of a loss."""
        value, name = _value_of_summary(self._analysis, op), self._analysis.flow.names[op]
        towers = self._towers(value)
        if towers == self._analysis.all_towers:
            yield from self._counted(value, name)
        elif towers:
            yield self._partial(name, towers)

    def _towers(self, *tensors: str) -> TowerMask:
        found = 0
        for tensor in tensors:
            towers = self._losses.towers(tensor)
            if isinstance(towers, Missing):
                self.unread.append(towers.reason)
            else:
                found |= towers
        return TowerMask(found)

    def _are_all(self, tensors: Sequence[str]) -> bool:
        return self._towers(*tensors) == self._analysis.all_towers

    def _is_shown(self, tensor: str, tensors: Sequence[str]) -> bool:
        """Whether one of some numbers shows the value of a number for all towers."""
        value = self._losses.of_one_tower(tensor)
        return value is not None and any(
            self._losses.shows_all_of(each, value[0]) for each in tensors
        )

    def _partial(self, tensor: str, towers: TowerMask) -> Finding:
        """Return a finding on a loss that is not computed by every tower."""
        analysis, op = self._analysis, self._placement.ops[producer_of(tensor)]
        path = analysis.flow.path(
            analysis.flow.number[op.name], lambda op: bool(analysis.own_towers[op])
        )
        return replace(
            self._finding(op, towers),
            path=path_lines(self._placement, path),
            message=f"{op.name} ({op.type}) reports only the loss of {analysis.names_of(towers)}; "
            f"it does not depend on {analysis.names_of(analysis.all_towers ^ towers)}",
            consequence="the reported number looks like the loss of the batch, but is the loss of "
            "a part of it",
        )

    def _counted(self, tensor: str, name: str = "") -> Iterator[Finding]:
        """Yield a finding if a number counts the losses of the towers in a wrong way."""
        op = self._placement.ops[name or producer_of(tensor)]
        counts = self._losses.counts(tensor)
        if isinstance(counts, Missing):
            self.unread.append(counts.reason)
            return
        numbers, towers = list(counts.values()), len(counts)
        if not numbers:
            return
        if not are_equal(numbers):
            shares = self._losses.shares()
            if shares is None and all(numbers):
                self.unread.append(
                    f"{op.name} counts the losses of the towers unequally, and the graph does not "
                    "state how many rows each tower has"
                )
            elif shares is None or not are_equal(
                [counts[tower] / shares[tower] for tower in counts]
            ):
                factors = [
                    f"{count:.4g} times the loss of the tower on {self._analysis.towers[tower]}"
                    for tower, count in counts.items()
                ]
                yield replace(
                    self._finding(op, tuple(numbers), at=self._computing_op(op)),
                    message=f"{op.name} ({op.type}) does not count the losses of all towers "
                    f"equally: it adds up {listed(factors, limit=4)}",
                    consequence="some rows of the batch count more in the number than others",
                )
        elif self._placement.strategy and self._is_mean_of_sums(numbers):
            yield replace(
                self._finding(op, towers, at=self._computing_op(op)),
                message=f"{op.name} ({op.type}) is the mean of the replicas' losses, but the step "
                "trains their sum: each loss is a sum over the replica's rows, divided by a "
                "constant",
                consequence=f"the reported number is 1/{towers} of the loss of the batch",
                fix="report the sum: strategy.reduce('SUM', loss, axis=None)",
            )

    def _is_mean_of_sums(self, counts: Sequence[float]) -> bool:
        """Whether a number is a mean of losses that add up to the loss of the batch."""
        return are_equal([counts[0] * len(counts), 1.0]) and self._losses.are_added_up

    def _computing_op(self, op: Op) -> Op:
        """Return the op that computes the value that an op passes on."""
        while op.type in IDENTITIES and producer_of(op.inputs[0]) in self._placement.ops:
            op = self._placement.ops[producer_of(op.inputs[0])]
        return op

    def _finding(self, op: Op, group_key: Hashable, *, at: Op | None = None) -> Finding:
        """Return a finding on an op, at the line of another op if there is one."""
        placement, line = self._placement, (at or op).name
        return Finding(
            **about(op),
            ops=() if at is None else (line,),
            message="",
            devices=self._analysis.devices_of(self._analysis.all_towers),
            fix="append each tower's loss to a list in the loop, and report "
            "tf.add_n(losses) / num_gpus after it"
            if placement.strategy is None
            else "report the loss of all replicas: strategy.reduce('SUM', loss, axis=None), or "
            "'MEAN' if each replica's loss is the mean of its rows",
            group_key=group_key,
            may_follow=(Fact(FactKind.BLOCKED),) if placement.strategy else (),
            frames=blame_selection(placement, (line,), built_once(placement)),
        )


def _repeated_summaries(
    analysis: TowerAnalysis, summaries: list[OpId], reported: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding for each summary that is repeated in another tower.

    Args:
        analysis: the program.
        summaries: the summaries that are written.
        reported: the tensors that the program returns, or shows in summaries.
    """
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
            consequence=_consequence(analysis, copy, reported),
            fix="write one summary of the mean after the loop: tf.add_n(values) / num_gpus; or "
            "write it in one tower only, and allow it: --set loss-of-all-towers.allow=PATTERN",
            devices=analysis.towers[first].devices,
        )


def _consequence(analysis: TowerAnalysis, summary: OpId, reported: Sequence[str]) -> str:
    """Say what a curve of one tower shows, and which number shows the whole batch."""
    losses = reported_losses(analysis.placement)
    value = losses.of_one_tower(_value_of_summary(analysis, summary))
    shows_part = "each curve shows one tower's part of each batch"
    if value is None:
        return shows_part
    whole = next((each for each in reported if losses.shows_all_of(each, value[0])), None)
    if whole is None:
        return f"{shows_part}, and no curve shows the whole batch"
    return f"{shows_part}; only {producer_of(whole)} shows the whole batch"


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
    "return the loss whose gradients the step takes",
)
