from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.running_statistics import statistics
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural

_ALL = "all"
_ALL_MEANT = "if every tower's are meant to run, --set update-ops-run.tower=all"


@dataclass(frozen=True)
class UpdateOpsRun(Rule):
    """The statistics updates are part of the step, of every tower or of one.

    Batch normalisation keeps the moments that evaluation uses by ops that the step must run:
    those of the collection UPDATE_OPS, and those that assign what a tower computes on the way to
    its loss to a variable that is not trained. Left out of the train op they never run, and
    evaluation uses the initial values. What another step of the program runs is that step's.

    The updates of a copy of the model that only evaluates must not run in the step: evaluation
    would then use statistics of held-out rows. Updates of such a copy that do not run are right.

    Many programs run the updates of one tower alone, which are as good. That is kept, with a note,
    unless it is the last tower: its updates are what a loop over the towers leaves behind. It is
    kept as well if the program has a group for each tower's updates, and so has chosen one. If the
    step runs none, and a group apart from it waits for all or for those of the first tower, the
    rule is not checked: nothing tells whether the program runs that group.

    `tower` is the GPU of the one tower whose updates are meant to run, such as /gpu:0, or "all".
    `allow` lists updates, or patterns, that are run by themselves.
    """

    name = "update-ops-run"
    kind = "requested"
    requires = frozenset({Need.REQUESTED})

    tower: str = ""
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tower != _ALL:
            Device.parse(self.tower)

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        updates = [
            op
            for op in statistics(placement).updates
            if not matches_any(analysis.flow.names[op], self.allow)
        ]
        evaluation = [
            _of_evaluation(analysis, op)
            for op in statistics(placement).evaluation_updates
            if analysis.updates.steps[op] and not analysis.updates.unknown
            if not matches_any(analysis.flow.names[op], self.allow)
        ]
        if evaluation:
            return self.verdict(evaluation)
        if not updates:
            return self.not_checked("no op updates statistics such as batch normalisation's")
        if analysis.updates.unknown:
            return self.not_checked(analysis.updates.unknown)
        left_out = [op for op in self._meant(analysis, updates) if not analysis.updates.steps[op]]
        runs = len(updates) - len(left_out)
        if left_out and not self.tower:
            if (tower := _chosen(placement, updates)) is not None:
                return self.verdict(
                    [], f"the step runs the updates of {tower} alone; {_ALL_MEANT}"
                )
            group = statistics(placement).group_outside_step(updates) if not runs else None
            if group is not None:
                return self.not_checked(
                    f"{analysis.flow.names[group]} runs the updates together, and is not part of "
                    "the train op; return both as the train op, or declare the updates: "
                    "--set update-ops-run.allow=PATTERN"
                )
        note = f"the step runs {runs} of {plural(len(updates), 'update')}"
        return self.verdict([_finding(analysis, op, runs) for op in left_out], note)

    def _meant(self, analysis: TowerAnalysis, updates: Sequence[int]) -> Iterator[int]:
        """The updates that are to run: those of the declared tower, and those of none."""
        meant = Device.parse("" if self.tower == _ALL else self.tower).over(LOCALHOST)
        for op in updates:
            towers = list(analysis.towers_in(analysis.towers_behind[op]))
            of_others = towers and all(
                meant not in analysis.towers[each].devices for each in towers
            )
            if self.tower in ("", _ALL) or not of_others:
                yield op


def _chosen(placement: Placement, updates: Sequence[int]) -> str | None:
    """The one tower whose updates the step runs, if that does not look like an oversight."""
    analysis, of_program = analyse(placement), statistics(placement)
    only = of_program.only_tower(updates)
    is_last = only == len(analysis.towers) - 1
    if only is None or (is_last and not of_program.are_grouped(updates)):
        return None
    return analysis.names_of(1 << only)


def _of_evaluation(analysis: TowerAnalysis, op: int) -> Finding:
    flow = analysis.flow
    name = flow.names[op]
    holder = flow.state_holder(flow.inputs[op][0])
    of = f" of {flow.names[holder]}" if holder is not None else ""
    return Finding(
        object=name,
        op=flow.types[op],
        evidence="requested",
        expected="not part of the step",
        found="part of the step",
        message=f"{name} ({flow.types[op]}), the update{of} by a copy of the model that only "
        "evaluates, is part of the train op",
        path=path_lines(analysis.placement, [op]),
        consequence="the statistics mix held-out rows with those that the model is trained on",
        fix="build the copy that evaluates with training=False, or leave its scope out: "
        "tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, scope)",
        alike="evaluation",
    )


def _finding(analysis: TowerAnalysis, op: int, runs: int) -> Finding:
    flow = analysis.flow
    name = flow.names[op]
    holder = flow.state_holder(flow.inputs[op][0]) if flow.inputs[op] else None
    of = f" of {flow.names[holder]}" if holder is not None else ""
    towers = analysis.towers_behind[op] & analysis.all_towers
    by = f" by {analysis.names_of(towers)}" if towers else ""
    roots = " and ".join(flow.names[root] for root in analysis.updates.roots[:3])
    return Finding(
        object=name,
        op=flow.types[op],
        evidence="requested",
        expected=f"part of {roots}",
        found="not part of the step",
        message=f"{name} ({flow.types[op]}), the update{of}{by}, is not part of the train op "
        f"{roots}",
        path=path_lines(analysis.placement, [op]),
        ops=tuple(flow.names[root] for root in analysis.updates.roots[:1]),
        consequence="evaluation uses statistics of the other towers' examples alone"
        if runs
        else "evaluation uses the initial values: no step changes them",
        fix=f"{_GROUP}{_OF_ONE if runs else ''}",
        alike=bool(runs),
    )


_GROUP = (
    "make the train op tf.group(train_op, "
    "*tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)), of all scopes"
)
_OF_ONE = "; if one tower's are enough, declare it: --set update-ops-run.tower=/gpu:0"
