from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.analysis.updates import Update
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import ADDITIONS, VARIABLE_READS
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import joined, plural


@dataclass(frozen=True)
class OneUpdate(Rule):
    """One update per variable and step; the step counter increases by one.

    Several updates of one variable in one step race: apply_gradients in the loop over towers
    makes N steps of one, each with a part of the batch. An optimiser that is applied to two groups
    of variables moves its own scalars, such as Adam's powers of beta, twice. A counter that grows
    by two, or not at all, makes the learning rate decay at the wrong time.

    Updates in branches of which one is taken count once; updates without a gradient, such as
    clipped weights or a decay, do not count.

    `allow` lists variables, or patterns, that are updated more often on purpose.
    """

    name = "one-update"
    kind = "requested"
    requires = frozenset({Need.REQUESTED})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        if not analysis.updates.by_variable:
            return self.not_checked(analysis.updates.unknown or "the train op updates no variable")
        findings = [
            finding
            for finding in (*_doubled(placement, analysis), *_counters(placement, analysis))
            if not is_among(finding.object, self.allow)
        ]
        if findings and analysis.updates.unknown:
            return self.not_checked(analysis.updates.unknown)
        count = len(analysis.updates.by_variable)
        return self.verdict(findings, f"{plural(count, 'variable')} updated")


def _doubled(placement: Placement, analysis: TowerAnalysis) -> Iterator[Finding]:
    """Findings on variables that gradients update more than once, and on scalars beside them."""
    shapes = {variable.name: variable.shape for variable in placement.variables}
    trained = gradient_flow(placement).trained
    beside = {
        analysis.flow.names[holder]
        for updates in trained.values()
        for update in updates
        for value in update.values
        for holder in [analysis.flow.state_holder(_read(analysis, value))]
        if holder is not None
    }
    for variable, updates in analysis.updates.by_variable.items():
        if variable in trained:
            several = analysis.updates.at_once(trained[variable])
        elif variable in beside and shapes[variable] == ():
            several = analysis.updates.at_once(updates)
        else:
            continue
        if len(several) > 1:
            yield _finding(placement, analysis, variable, several)


def _read(analysis: TowerAnalysis, op: int) -> int:
    """The op whose value a read passes on."""
    return analysis.flow.inputs[op][0] if analysis.flow.types[op] in VARIABLE_READS else op


def _finding(
    placement: Placement, analysis: TowerAnalysis, variable: str, updates: Sequence[Update]
) -> Finding:
    count = len(updates)
    names = [analysis.flow.names[update.op] for update in updates[:3]]
    more = [f"{count - 3} more"] if count > 3 else []
    extra = analysis.flow.names[updates[1].op]
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected="1 update a step",
        found=f"{count} updates",
        where=placement.where(extra),
        path=steps(placement, [update.op for update in updates]),
        message=f"one step updates {variable} {count} times, by {joined([*names, *more])}"
        f"{built_at(placement, extra)}",
        fix="average the gradients of all towers and call apply_gradients once, with all "
        "variables of the optimiser",
    )


def _counters(placement: Placement, analysis: TowerAnalysis) -> Iterator[Finding]:
    """Findings on step counters, which one step must move by one."""
    if analysis.updates.unknown:
        return
    declared = [name for name in placement.step.counters if name in placement.ops]
    for counter in dict.fromkeys([*declared, *_counted_again(placement, analysis)]):
        updates = analysis.updates.at_once(analysis.updates.by_variable.get(counter, ()))
        if len(updates) > 1:
            fault = f"incremented {len(updates)} times"
            fix = "let only apply_gradients(…, global_step=global_step) increment it"
        elif updates:
            by = _moved_by(placement, analysis, updates[0])
            if by is None or by == 1:
                continue
            fault = f"incremented by {by}"
            fix = "increment it by 1 in each step, whatever the number of towers"
        elif any(analysis.updates.steps[op] for op in _consumers(analysis, counter)):
            fault = "never incremented, though the step reads it"
            fix = "pass it to the optimiser: apply_gradients(…, global_step=global_step)"
        else:
            continue
        at = analysis.flow.names[updates[-1].op] if updates else counter
        yield Finding(
            object=counter,
            op=placement.ops[counter].type,
            evidence="requested",
            expected="incremented by 1 in each step",
            found=fault,
            where=placement.where(at),
            path=steps(placement, [update.op for update in updates]),
            message=f"the step counter {counter} is {fault}: what depends on it, such as the "
            f"decay of the learning rate, changes at the wrong time{built_at(placement, at)}",
            fix=fix,
        )


def _counted_again(placement: Placement, analysis: TowerAnalysis) -> Iterator[str]:
    """Scalars to which one step adds 1 more than once: counters that no collection names."""
    scalars = {variable.name for variable in placement.variables if variable.shape == ()}
    for variable, updates in analysis.updates.by_variable.items():
        moves = [_moved_by(placement, analysis, update) for update in updates]
        again = len(analysis.updates.at_once(updates)) > 1
        if variable in scalars and again and set(moves) == {1}:
            yield variable


def _consumers(analysis: TowerAnalysis, variable: str) -> Sequence[int]:
    return analysis.flow.consumers[analysis.flow.number[variable]]


def _moved_by(placement: Placement, analysis: TowerAnalysis, update: Update) -> int | None:
    """The constant that an op adds; None if it is computed."""
    if analysis.flow.types[update.op] not in ADDITIONS or not update.values:
        return None
    value = placement.details.value(analysis.flow.names[update.values[0]])
    return int(value[2]) if value is not None else None
