from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from placement_checks.analysis.graph.data_flow import StepOrder
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.running_statistics import statistics
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import (
    ADDITIONS,
    ADDS,
    CALLS,
    CONST,
    IDENTITIES,
    OVERWRITES,
    PASSES_READ,
    PASSES_VALUE,
    PRODUCTS,
    RESTORES,
    VARIABLE_READS,
    VARIABLES,
    is_update,
)
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import AVERAGE, Rule, matches_any, path_lines
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, plural


def is_read(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether the step reads a variable."""
    number = analysis.flow.number[variable]
    return any(analysis.updates.steps[op] for op in analysis.flow.consumers[number])


def separate_increment(analysis: TowerAnalysis, counter: str) -> int | None:
    """The op that adds to a counter and is not part of the step; another fetch may run it."""
    writers = analysis.flow.writers.get(analysis.flow.number[counter], ())
    return next((op for op, _ in writers if analysis.flow.types[op] in ADDITIONS), None)


def constant_counters(placement: Placement, analysis: TowerAnalysis) -> Iterator[str]:
    """Single numbers that the step reads, that start at 0, and that nothing else ever changes.

    Those are counters that nobody counts: a number that is meant to stay would not be 0. One that
    need not be whole might also be a weight of the loss, or the learning rate, which the program
    sets by feeding its initialiser.
    """
    for variable in placement.variables:
        name, writers = variable.name, analysis.flow.writers
        is_whole = variable.dtype.startswith("int")
        if variable.shape == () and (is_whole or only_schedules(analysis, name)):
            number = analysis.flow.number[name]
            kinds = [
                _sets_to(placement, analysis, op, values)
                for op, values in writers.get(number, ())
                if _may_write(analysis, op)
            ]
            if "zero" in kinds and "other" not in kinds and is_read(analysis, name):
                yield name


def only_schedules(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether updates depend on a variable, and neither as on a rate nor by way of the loss.

    A rate is taken by updates as it is, or is multiplied by a factor first.
    """
    flow, reads = analysis.flow, analysis.reads_by_gpu
    if any(map(reads.in_loss, reads.readers[variable])):
        return False
    passing = [flow.number[variable]]
    takers: list[int] = []
    for op in passing:
        passing += [taker for taker in flow.consumers[op] if flow.types[taker] in PASSES_READ]
        takers += [taker for taker in flow.consumers[op] if flow.types[taker] not in PASSES_READ]
    return any(op in reads.behind_updates and flow.types[op] not in PRODUCTS for op in takers)


def _may_write(analysis: TowerAnalysis, op: int) -> bool:
    """Whether an op that takes a variable first changes it; a comparison, say, only reads it."""
    kind = analysis.flow.types[op]
    return is_update(kind) or (kind in CALLS and op not in analysis.flow.calls)


def _sets_to(placement: Placement, analysis: TowerAnalysis, op: int, values: Sequence[int]) -> str:
    """What a writer sets a variable to: ``zero``, what was ``saved``, or an ``other`` value."""
    flow = analysis.flow
    if flow.types[op] not in OVERWRITES or not values:
        return "other"
    value = values[0]
    while flow.types[value] in PASSES_VALUE and flow.inputs[value]:
        value = flow.inputs[value][0]
    if flow.types[value] in RESTORES:
        return "saved"
    constant = placement.details.value(flow.names[value]) if flow.types[value] == CONST else None
    return "zero" if constant is not None and constant[2] == 0 else "other"


@dataclass(frozen=True)
class OneUpdate(Rule):
    """One update per variable and step; the step counter increases by one.

    Several updates of one variable in one step race: apply_gradients in the loop over towers
    makes N steps of one, each with a part of the batch. An optimizer that is applied to two groups
    of variables moves its own scalars, such as Adam's powers of beta, twice. A momentum, a moving
    average or a target network that is moved in the loop over towers decays N times a step. A
    counter that grows by two, or not at all, makes the learning rate decay at the wrong time.

    Updates in sequence are allowed if each takes the gradients of all towers, computed after the
    update before it: the steps up and down of sharpness-aware minimization, or several steps of a
    critic.

    A counter is what the collection GLOBAL_STEP holds, and a whole number that starts at 0, that
    the step reads, and that nothing but its initialiser sets. So is a fraction that only updates
    depend on, by way of what is computed with it, such as the decay of the rate. If an op that is
    not part of the step adds to a counter, the rule is not checked: the program may run that op
    beside the step.

    Updates in branches of which one is taken count once; updates without a gradient, such as
    clipped weights or a decay, do not count.

    `allow` lists variables, or patterns, that are updated more often on purpose.
    """

    name = "one-update"
    kind = "requested"
    requires = frozenset({Need.REQUESTED})
    explained_by = ("created-in-scope",)

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        if not analysis.updates.by_variable:
            return self.not_checked(analysis.updates.unknown or "the train op updates no variable")
        findings = [
            finding
            for finding in (*_doubled(placement, analysis), *_counters(placement, analysis))
            if not matches_any(finding.object, self.allow)
        ]
        if findings and analysis.updates.unknown:
            return self.not_checked(analysis.updates.unknown)
        apart = next(_counted_apart(placement, analysis), None)
        if apart is not None and not findings and not matches_any(apart[0], self.allow):
            return self.not_checked(
                f"the step counter {apart[0]} is incremented by {apart[1]}, which is not part of "
                "the train op; return both as the train op"
            )
        count = len(analysis.updates.by_variable)
        return self.verdict(findings, f"{plural(count, 'variable')} updated")


def _doubled(placement: Placement, analysis: TowerAnalysis) -> Iterator[Finding]:
    """Findings on variables that gradients update more than once, and on other state."""
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
            if len(several) > 1 and _is_sequence(placement, several):
                continue
        elif moves := _moved_by_towers(analysis, updates):
            several = moves
        elif variable in beside and shapes[variable] == ():
            several = analysis.updates.at_once(updates)
        else:
            continue
        if len(several) > 1:
            yield _finding(placement, analysis, variable, several)


def _is_sequence(placement: Placement, updates: Sequence[Update]) -> bool:
    """Whether each update takes gradients of all towers, computed after the updates before it."""
    analysis, gradients = analyse(placement), gradient_flow(placement)
    readers = variable_layout(placement).readers.get(updates[0].variable, analysis.all_towers)
    if any(gradients.towers(update) & readers != readers for update in updates):
        return False
    return _wait_for_each_other(analysis, updates)


def _wait_for_each_other(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether of any two updates the gradients of one are computed after the other.

    They are if the ops that compute them wait for the other update, as automatic control
    dependencies make them in a `tf.function`.
    """
    own = {update.op: 1 << number for number, update in enumerate(updates)}
    awaited = StepOrder(analysis.flow, analysis.updates.roots).awaited(own)
    gradients = gradient_flow(analysis.placement)
    behind = [
        reduce(or_, (awaited[op] for op in gradients.sources(update)), 0) for update in updates
    ]
    # In a sequence the first update waits for none of the others, the second for one, and so on.
    return sorted(mask.bit_count() for mask in behind) == list(range(len(updates)))


def _moved_by_towers(analysis: TowerAnalysis, updates: Sequence[Update]) -> list[Update]:
    """The updates of state that is moved once for each tower; empty if there is only one.

    The state decays: each update is computed from the variable itself, by more than an addition.
    What towers add up is not moved, nor are the statistics of batch normalization, which may be
    updated by the rows of each tower.
    """
    several = analysis.updates.at_once(updates)
    if len(several) < 2 or len(analysis.towers) < 2:
        return []
    decays = [update for update in several if _decays(analysis, update)]
    towers = {_towers_of(analysis, update) for update in decays}
    if len(decays) < 2 or any(map(statistics(analysis.placement).is_of_normalization, decays)):
        return []
    each_by_one = all(mask.bit_count() == 1 for mask in towers) and len(towers) == len(decays)
    alike = towers == {0} and len(decays) == len(analysis.towers)
    return decays if each_by_one or alike else []


def _towers_of(analysis: TowerAnalysis, update: Update) -> int:
    """The towers whose values an update takes, a bit each."""
    found = 0
    for value in update.values:
        found |= analysis.towers_behind[value]
    return found & analysis.all_towers


def _decays(analysis: TowerAnalysis, update: Update) -> bool:
    """Whether an update scales what the variable held, or subtracts a part of it."""
    flow = analysis.flow
    variable = flow.number[update.variable]
    behind = flow.reachable(update.values, until=lambda op: flow.types[op] in VARIABLES)
    if variable not in behind:
        return False
    if flow.types[update.op] not in OVERWRITES:
        return True
    only_added = flow.reachable(update.values, until=lambda op: flow.types[op] not in _ADDS_ITSELF)
    return variable not in only_added


def _read(analysis: TowerAnalysis, op: int) -> int:
    """The op whose value a read passes on."""
    return analysis.flow.inputs[op][0] if analysis.flow.types[op] in VARIABLE_READS else op


def _finding(
    placement: Placement, analysis: TowerAnalysis, variable: str, updates: Sequence[Update]
) -> Finding:
    count = len(updates)
    names = [analysis.flow.names[update.op] for update in updates[:3]]
    more = [f"{count - 3} more"] if count > 3 else []
    trained = variable in gradient_flow(placement).trained
    is_scalar = any(each.name == variable and each.shape == () for each in placement.variables)
    by_towers = not trained and not is_scalar and bool(_moved_by_towers(analysis, updates))
    in_turn = not trained or _wait_for_each_other(analysis, updates)
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected="1 update a step",
        found=f"{count} updates",
        ops=(analysis.flow.names[updates[1].op],),
        path=path_lines(placement, [update.op for update in updates]),
        message=f"one step updates {variable} {count} times, by {join_and([*names, *more])}",
        consequence=(
            f"{count} updates {'follow each other' if in_turn else 'race'} instead of one, each "
            "with a part of the batch"
        )
        if trained
        else _MOVED_TOO_OFTEN.format(count)
        if by_towers
        else "what the optimizer corrects by it, such as Adam's bias, runs ahead of the weights",
        fix=_APPLY_AVERAGE if trained else _MOVE_ONCE if by_towers else _APPLY_ONCE,
        alike=(trained, count),
    )


def _counters(placement: Placement, analysis: TowerAnalysis) -> Iterator[Finding]:
    """Findings on step counters, which one step must move by one."""
    if analysis.updates.unknown:
        return
    declared = [name for name in placement.step.counters if name in placement.ops]
    moved_apart = {counter for counter, _ in _counted_apart(placement, analysis)}
    others = (*_counted_again(placement, analysis), *constant_counters(placement, analysis))
    for counter in dict.fromkeys([*declared, *others]):
        updates = analysis.updates.at_once(analysis.updates.by_variable.get(counter, ()))
        if len(updates) > 1:
            times = len(updates)
            fault = f"incremented {times} times"
            cost = _too_fast(times)
            fix = f"let one op increment it: {_COUNT}"
        elif updates:
            by = _moved_by(placement, analysis, updates[0])
            if by is None or by == 1:
                continue
            fault = f"incremented by {by}"
            cost = _too_fast(by) if by else _AT_REST
            fix = "increment it by 1 in each step, whatever the number of towers"
        elif counter not in moved_apart and is_read(analysis, counter):
            fault = "never incremented, though the step reads it"
            cost = _AT_REST
            fix = f"count the step where gradients are applied: {_COUNT}"
        else:
            continue
        yield Finding(
            object=counter,
            op=placement.ops[counter].type,
            evidence="requested",
            expected="incremented by 1 in each step",
            found=fault,
            ops=(analysis.flow.names[updates[-1].op],) if updates else _applied(placement),
            path=path_lines(placement, [update.op for update in updates]),
            message=f"the step counter {counter} is {fault}",
            consequence=cost,
            fix=fix,
        )


def _too_fast(times: int) -> str:
    return f"what depends on it, such as the decay of the rate, goes {times} times as fast"


def _applied(placement: Placement) -> tuple[str, ...]:
    """An op of the call that applies gradients, if there is one."""
    flow = analyse(placement).flow
    trained = gradient_flow(placement).trained.values()
    return tuple(flow.names[updates[-1].op] for updates in trained)[-1:]


def _counted_again(placement: Placement, analysis: TowerAnalysis) -> Iterator[str]:
    """Scalars to which one step adds 1 more than once: counters that no collection names.

    A fraction counts only if updates depend on it: others count what the towers report. If all
    of these updates are made as often in a step, as those of statistics by each tower are, the
    number goes with them.
    """
    scalars = {
        variable.name
        for variable in placement.variables
        if variable.shape == ()
        and (variable.dtype.startswith("int") or only_schedules(analysis, variable.name))
    }
    for variable, updates in analysis.updates.by_variable.items():
        moves = [_moved_by(placement, analysis, update) for update in updates]
        times = len(analysis.updates.at_once(updates))
        if variable not in scalars or times < 2 or set(moves) != {1}:
            continue
        if not _goes_with_updates(analysis, variable, times):
            yield variable


def _goes_with_updates(analysis: TowerAnalysis, counter: str, times: int) -> bool:
    """Whether other variables depend on a counter, and all of them are updated as often."""
    flow = analysis.flow
    dependent: set[str] = set()
    reached = [flow.number[counter]]
    seen = set(reached)
    for op in reached:
        for taker in flow.consumers[op]:
            if taker in seen:
                continue
            seen.add(taker)
            holder = None
            if is_update(flow.types[taker]):
                holder = flow.state_holder(flow.inputs[taker][0])
            if holder is None or flow.names[holder] == counter:
                reached.append(taker)  # an update yields the new value
            else:
                dependent.add(flow.names[holder])
    by_variable = analysis.updates.by_variable
    return bool(dependent) and all(
        len(analysis.updates.at_once(by_variable.get(name, ()))) >= times for name in dependent
    )


def _counted_apart(placement: Placement, analysis: TowerAnalysis) -> Iterator[tuple[str, str]]:
    """The declared counters that the step reads and another op moves, each with that op."""
    for counter in () if analysis.updates.unknown else placement.step.counters:
        if counter in placement.ops and counter not in analysis.updates.by_variable:
            op = separate_increment(analysis, counter)
            if op is not None and is_read(analysis, counter):
                yield counter, analysis.flow.names[op]


def _moved_by(placement: Placement, analysis: TowerAnalysis, update: Update) -> int | None:
    """The constant that an op adds; None if it is computed."""
    if analysis.flow.types[update.op] not in ADDITIONS or not update.values:
        return None
    value = placement.details.value(analysis.flow.names[update.values[0]])
    return int(value[2]) if value is not None else None


_ADDS_ITSELF = ADDS | PASSES_READ | IDENTITIES
_MOVED_TOO_OFTEN = "it decays {} times in a step, and depends on the order of the towers"
_MOVE_ONCE = "update it once, after the loop over towers, by the mean of the towers' values"
_APPLY_AVERAGE = f"apply once, after the loop over towers: optimizer.apply_gradients({AVERAGE})"
_APPLY_ONCE = (
    "apply the optimiser once, to all of its variables, or use one for each group of them"
)
_AT_REST = "what depends on it, such as the decay of the rate, stays as in the first step"
_COUNT = "optimizer.apply_gradients(…, global_step=tf.compat.v1.train.get_or_create_global_step())"
