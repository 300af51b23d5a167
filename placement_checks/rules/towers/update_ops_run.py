from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.running_statistics import statistics
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.ids import OpId
from placement_checks.core.impact import Impact
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    Fields,
    Rule,
    about,
    matches_any,
    path_lines,
    short_name,
    unless_allowed,
)
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural

_ALL = "all"


@dataclass(frozen=True)
class UpdateOpsRun(Rule):
    """The step updates statistics, such as moving averages, from one tower or from all towers.

    Evaluation uses these statistics, such as the moving mean and variance of batch normalization.
    If the train op leaves their updates out, evaluation uses the initial values.

    Statistics updates are the ops in the collection UPDATE_OPS, and assignments to variables that
    are not trained, if a tower computes the assigned value on the way to its loss. An update that
    another step of the program runs belongs to that step.

    The updates of a copy of the model that only evaluates must not run in the step: evaluation
    would then use statistics of held-out rows.

    Many programs run the updates of only one tower, which is enough: slim and its descendants run
    the updates of the last tower. The rule is then kept, with a note. If each tower has statistics
    of its own, the updates of the first tower are required, because evaluation usually reads the
    statistics of the first tower. If the step runs no updates, and a separate group runs the
    updates of all towers or of the first tower, the rule is not checked: the program may run that
    group.

    `tower` is the GPU of the one tower whose updates are meant to run, such as /gpu:0, or "all".
    `allow` lists updates, or patterns, that the program runs outside of the step.
    """

    name = "update-ops-run"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.SKIPPED
    requires = frozenset({Need.REQUESTED})
    intended = "the step need not run the other updates of statistics"
    threads = (
        "argman/EAST#112: only the updates of the last GPU's batch norm",
        "tensorflow/tensorflow#7439: the choice of the towers with updates",
        "horovod/horovod#49: the usual practice: the updates of one tower",
    )

    tower: str = ""
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tower != _ALL:
            Device.parse(self.tower)

    def check(self, evidence: Evidence) -> Verdict:
        analysis = analyze(evidence.placement)
        program_statistics = statistics(evidence.placement)
        names, steps = analysis.flow.names, analysis.updates.in_step
        updates = [
            op for op in program_statistics.updates if not matches_any(names[op], self.allow)
        ]
        if not analysis.updates.unknown:
            evaluation = (op for op in program_statistics.evaluation_updates if steps[op])
            findings = (_evaluation_update(analysis, op) for op in evaluation)
            if found := unless_allowed(findings, self.allow):
                return self.verdict(found)
        if not updates:
            return self.not_checked("no op updates statistics, such as batch normalization's")
        if (missing := analysis.updates.missing) is not None:
            return self.without(missing)
        required = analysis.all_towers
        if self.tower not in ("", _ALL):
            required = analysis.towers_on(Device.parse(self.tower))
            if analysis.towers and not required:
                return self.not_checked(
                    f"update-ops-run.tower is {self.tower}, and no tower is on this device",
                    fix=f"name the GPU of a tower, such as {analysis.towers[0].devices[0].short}",
                )
        left_out = [
            op
            for op in updates
            if not steps[op] and (not (towers := analysis.towers_of(op)) or towers & required)
        ]
        run = [op for op in updates if steps[op]]
        updated = {_target(analysis, op) for op in run}
        if not self.tower:
            tower = program_statistics.only_tower(updates)
            # If towers do not share statistics, evaluation uses the statistics of the first tower.
            if tower is not None and (
                tower == 0 or {_target(analysis, op) for op in left_out} <= updated
            ):
                return self.verdict(
                    [],
                    f"the step runs the updates of {analysis.names_of(1 << tower)} alone; if the "
                    "updates of every tower are meant to run, --set update-ops-run.tower=all",
                )
            group = program_statistics.group_outside_step(updates) if not run else None
            if group is not None:
                return self.not_checked(
                    f"op '{names[group]}' runs the updates of statistics, but is not part of the "
                    "train op",
                    fix="return both: {'train_op': tf.group(train_op, updates)}, or declare the "
                    "updates: "
                    "--set update-ops-run.allow=PATTERN",
                )
        note = f"the step runs {len(run)} of {plural(len(updates), 'update')}"
        return self.verdict([_skipped_update(analysis, op, updated) for op in left_out], note)

    def intended_fields(self, evidence: Evidence, _verdict: Verdict) -> Iterator[Fields]:
        """Yield each tower, as the only tower whose updates must run."""
        for tower in analyze(evidence.placement).towers:
            yield {"tower": short_name(tower.devices[0])}


def _evaluation_update(analysis: TowerAnalysis, op: OpId) -> Finding:
    name, kind = analysis.flow.names[op], analysis.flow.types[op]
    return Finding(
        **about(analysis.placement.ops[name]),
        message=f"{name} ({kind}), which updates {_target(analysis, op)} in a copy of the model "
        "that only evaluates, is part of the train op",
        path=path_lines(analysis.placement, [op]),
        consequence="the statistics mix held-out rows with rows that the model is trained on",
        fix="build the copy that evaluates with training=False, or leave its scope out: "
        "tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, scope)",
    )


def _skipped_update(analysis: TowerAnalysis, op: OpId, updated: Collection[str]) -> Finding:
    """Return the finding on an update that the step skips.

    ``updated`` are the statistics that other updates of the step change.
    """
    name, kind = analysis.flow.names[op], analysis.flow.types[op]
    towers = analysis.towers_of(op)
    by = f" in {analysis.names_of(towers)}" if towers else ""
    roots = [analysis.flow.names[root] for root in analysis.updates.roots[:3]]
    train_op = " and ".join(f"'{root}'" for root in roots)
    target, one_tower = _target(analysis, op), ""
    if updated:
        one_tower = "; if the updates of one tower are enough: --set update-ops-run.tower=/gpu:0"
    return Finding(
        **about(analysis.placement.ops[name]),
        message=f"{name} ({kind}), which updates {target}{by}, is not part of the "
        f"train op {train_op}",
        path=path_lines(analysis.placement, [op]),
        ops=tuple(roots[:1]),
        facts=(Fact(FactKind.SKIPPED, target),),
        group_key=target in updated,
        consequence="evaluation uses statistics of the other towers' examples alone"
        if target in updated
        else "evaluation uses the initial values: no step changes them",
        fix=(_RUN_COLLECTION if analysis.placement.step.update_ops else _RUN_LIST) + one_tower,
        devices=analysis.devices_of(towers),
    )


_RUN_COLLECTION = (
    "make the train op tf.group(train_op, "
    "*tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)); pass no scope to "
    "get_collection"
)
_RUN_LIST = (
    "append the update ops to a list in the loop over towers, and make the train op "
    "tf.group(train_op, *updates)"
)


def _target(analysis: TowerAnalysis, op: OpId) -> str:
    holder = analysis.flow.first_holder(op)
    return "statistics" if holder is None else analysis.flow.names[holder]
