from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import ASSIGNS, VARIABLES
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class UpdateOpsRun(Rule):
    """The statistics updates are part of the step, of every tower or of the declared one.

    Batch normalisation keeps the moments that evaluation uses by ops that the step must run:
    those of the collection UPDATE_OPS, and those that assign what a tower computes of its examples
    to a variable that is not trained. Left out of the train op they never run, and evaluation uses
    the initial values.

    `tower` is the GPU of the one tower whose updates are meant to run, such as /gpu:0; those of
    the others may be left out. `allow` lists updates, or patterns, that are run by themselves.
    """

    name = "update-ops-run"
    kind = "requested"
    requires = frozenset({Need.REQUESTED})

    tower: str = ""
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Device.parse(self.tower)

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        updates = [
            op
            for op in sorted(set(_statistics(placement, analysis)))
            if not is_among(analysis.flow.names[op], self.allow)
        ]
        if not updates:
            return self.not_checked("no op updates statistics such as batch normalisation's")
        if analysis.updates.unknown:
            return self.not_checked(analysis.updates.unknown)
        meant = Device.parse(self.tower).over(LOCALHOST)
        left_out = []
        for op in updates:
            towers = [
                analysis.towers[number]
                for number in analysis.towers_in(analysis.towers_behind[op])
            ]
            if self.tower and towers and not any(meant in tower.devices for tower in towers):
                continue
            if not analysis.updates.steps[op]:
                left_out.append(op)
        runs = len(updates) - len(left_out)
        note = f"the step runs {runs} of {plural(len(updates), 'update')}"
        return self.verdict([_finding(placement, analysis, op, runs) for op in left_out], note)


def _statistics(placement: Placement, analysis: TowerAnalysis) -> Iterator[int]:
    flow = analysis.flow
    for name in placement.step.update_ops:
        if name in flow.number:
            yield flow.number[name]
    for here in flow.having(ASSIGNS.__contains__):
        if len(flow.inputs[here]) < 2:
            continue
        holder = flow.state_holder(flow.inputs[here][0])
        if holder is None or flow.types[holder] not in VARIABLES:
            continue
        name = flow.names[holder]
        if name in gradient_flow(placement).trained or not _is_kept(placement, name):
            continue
        # Reading the variable itself proves nothing: a counter does so as well.
        itself = set(analysis.reads_by_gpu.readers[name])

        def leads_on(op: int, itself: set[int] = itself) -> bool:
            return not analysis.own_towers[op] or op in itself

        behind = flow.walk_back(flow.inputs[here][1:], leads_on)
        towers = [analysis.towers_behind[op] for op in behind if not leads_on(op)]
        examples = any(analysis.examples[op] for op in flow.inputs[here][1:])
        if examples and towers and not any(mask & analysis.gradient_bit for mask in towers):
            yield here


def _is_kept(placement: Placement, variable: str) -> bool:
    """Whether it is one of the program's own, not one of a metric's or of a counter's."""
    collected = placement.collected
    return not any(collected.values()) or any(variable in names for names in collected.values())


def _finding(placement: Placement, analysis: TowerAnalysis, op: int, runs: int) -> Finding:
    flow = analysis.flow
    name = flow.names[op]
    holder = flow.state_holder(flow.inputs[op][0]) if flow.inputs[op] else None
    of = f" of {flow.names[holder]}" if holder is not None else ""
    towers = analysis.towers_behind[op] & analysis.all_towers
    by = f" by {analysis.names_of(towers)}" if towers else ""
    roots = " and ".join(flow.names[root] for root in analysis.updates.roots[:3])
    one = (
        "; if the updates of one tower are enough, declare it: --set update-ops-run.tower=/gpu:0"
        if runs
        else ""
    )
    return Finding(
        object=name,
        op=flow.types[op],
        evidence="requested",
        expected=f"part of {roots}",
        found="not part of the step",
        where=placement.where(name),
        message=f"{name} ({flow.types[op]}), the update{of}{by}, is not part of the train op "
        f"{roots}{built_at(placement, name)}",
        fix="group it with the train op: tf.group(train_op, *get_collection(UPDATE_OPS)), or "
        f"build the train op under tf.control_dependencies of them{one}",
    )
