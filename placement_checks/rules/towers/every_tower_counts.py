from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.gradient_flow import GradientFlow, gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import SCALES
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import ADD_UP, AVERAGE, Rule, matches_any, path_lines
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class EveryTowerCounts(Rule):
    """Each variable's update depends on every tower's loss.

    A tower whose gradients are not part of the update has computed for nothing: the last tower's
    gradients are applied alone, one tower's are taken twice, or one variable's gradient is lost
    behind a tf.stop_gradient.

    Judged for each variable by the towers that read it, or a copy of it where it is mirrored.
    Gradients that are summed up over steps, in variables or accumulators, count.

    `allow` lists variables, or patterns, that not all towers train, on purpose.
    """

    name = "every-tower-counts"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES_APART})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        gradients = gradient_flow(placement)
        if not gradients.trained:
            return self.not_checked(
                analysis.updates.unknown or "no variable that towers read is updated by a gradient"
            )
        missing = {
            variable: [*self._missing(analysis, gradients, variable, updates)]
            for variable, updates in gradients.trained.items()
            if not matches_any(variable, self.allow)
        }
        everywhere = set.intersection(*map(set, missing.values())) if missing else set()
        meetings = _Meetings(placement)
        findings = [
            _finding(placement, meetings, variable, towers, useless=everywhere.issuperset(towers))
            for variable, towers in missing.items()
            if towers
        ]
        count = len(gradients.trained)
        return self.verdict(findings, plural(count, "variable"))

    @staticmethod
    def _missing(
        analysis: TowerAnalysis, gradients: GradientFlow, variable: str, updates: Sequence[Update]
    ) -> Iterator[int]:
        """The numbers of the towers that read it, or its copy, and are no part of its update."""
        taken = _taken(gradients, updates)
        for number in variable_layout(analysis.placement).read_as(variable):
            if not taken >> number & 1:
                yield number


def _taken(gradients: GradientFlow, updates: Sequence[Update]) -> int:
    """The towers whose gradients are part of one of the updates, a bit each."""
    return reduce(or_, map(gradients.towers, updates), 0)


def _finding(
    placement: Placement,
    meetings: _Meetings,
    variable: str,
    missing: Sequence[int],
    *,
    useless: bool,
) -> Finding:
    """The finding on a variable; ``useless`` are towers that no variable's update takes."""
    analysis = analyse(placement)
    gradients = gradient_flow(placement)
    updates = gradients.trained[variable]
    taken = _taken(gradients, updates)
    update = updates[0].op
    lost = sum(1 << number for number in missing)
    without = analysis.names_of(lost)
    verb = "reads" if len(missing) == 1 else "read"
    towers = analysis.names_of(taken) if taken else "no tower"
    read_as = variable_layout(placement).read_as(variable)
    what = "it" if set(read_as.values()) == {variable} else "its copy"
    others = f", but only those of {towers}" if taken else ""
    look_at, fix = meetings.to_edit(updates[0])
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected="an update by the gradients of all towers that read it",
        found=f"an update by the gradients of {towers}",
        ops=(look_at,),
        alike=(tuple(missing), taken, useless),
        path=(
            *path_lines(placement, [update]),
            *(
                f"the tower on {analysis.towers[number]} reads {what}: "
                f"{analysis.towers[number].reads[read_as[number]]}"
                for number in missing
            ),
        ),
        message=f"the update of {variable} takes no gradients of {without}, which {verb} {what}"
        f"{others}",
        consequence=_cost(analysis, lost, taken, useless=useless),
        fix=fix if placement.strategy is None else ADD_UP,
    )


def _cost(analysis: TowerAnalysis, missing: int, taken: int, *, useless: bool) -> str:
    if not taken:
        return "it learns from no example"
    lost, all_towers = missing.bit_count(), len(analysis.towers)
    part = "half" if 2 * lost == all_towers else f"{lost}/{all_towers}"
    if useless:
        computes = "computes" if lost == 1 else "compute"
        return (
            f"{analysis.names_of(missing)} {computes} for nothing: {part} of each batch is ignored"
        )
    return f"it does not learn from {part} of each batch, as other variables do"


class _Meetings:
    """Where gradients are brought together, and what is to be edited where they are not."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyse(placement)
        self._gradients = gradient_flow(placement)

    def to_edit(self, update: Update) -> tuple[str, str]:
        """The op whose line is to be edited, and how.

        Where gradients are brought together; where others are and these are not, there; where
        one tower's gradient alone is handled outside of the towers, there; else the update.
        """
        flow = self._analysis.flow
        own = self._of(update)
        if own is not None:
            return self._known(own) or flow.names[update.op], _ADD_EACH
        if self._other is not None:
            variable, at = self._other
            rows = _ROWS if _is_sparse(flow.types[update.op]) else ""
            return at, f"average it as {variable} is averaged here{_PASSED_OVER}{rows}"
        alone = self._alone(update)
        return (flow.names[update.op], _AVERAGE) if alone is None else (alone, _ADD_EACH)

    def _alone(self, update: Update) -> str | None:
        """The first op outside of the towers that takes the one gradient, if its line is known."""
        outside = (
            op
            for op in sorted(self._gradients.ancestors(update))
            if op != update.op and not self._analysis.backward.ops[op]
            if self._analysis.tower_of[op] < 0 and self._gradients.gradient_inputs(op)
        )
        return next(filter(None, map(self._known, outside)), None)

    @cached_property
    def _other(self) -> tuple[str, str] | None:
        """The first variable whose gradients are brought together, with the op that does so."""
        for variable, (update, *_) in self._gradients.trained.items():
            meeting = self._of(update)
            if meeting is not None and (op := self._known(meeting)):
                return variable, op
        return None

    def _known(self, op: int) -> str | None:
        """The name of an op, if its line is known."""
        name = self._analysis.flow.names[op]
        return name if self._placement.where(name) else None

    def _of(self, update: Update) -> int | None:
        """The first op that brings gradients together, or adds them up in a variable."""
        analysis, taken = self._analysis, self._gradients.gradient_inputs
        behind = self._gradients.ancestors(update)
        reached = set(behind)
        sums = (
            op
            for op in behind
            if not analysis.backward.ops[op]
            and analysis.flow.types[op] not in SCALES
            and len(taken(op)) > 1
        )
        writers = (
            writer
            for holder in behind
            for writer, values in analysis.flow.writers.get(holder, ())
            if reached.intersection(values) and writer != update.op and taken(writer)
        )
        by_place = {op: (analysis.tower_of[op] >= 0, op) for op in (*sums, *writers)}
        return min(by_place, key=by_place.__getitem__, default=None)


def _is_sparse(kind: str) -> bool:
    """Whether an update takes gradients of some rows, IndexedSlices."""
    return "Scatter" in kind or "Sparse" in kind


_AVERAGE = f"average over towers before apply_gradients: {AVERAGE}"
_ADD_EACH = (
    "add one gradient of each tower: look for an index that leaves one out, a list that each "
    "tower overwrites, or a tf.stop_gradient in one"
)
_ROWS = "; IndexedSlices have no sum: tf.concat their values and their indices"
_PASSED_OVER = ": look for an `if` that passes it over, or a tf.stop_gradient in one tower"
