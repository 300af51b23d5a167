from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.graph.data_flow import StepOrder, union
from placement_checks.analysis.graph.updates import Update, added_term
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.running_statistics import statistics
from placement_checks.core.evidence import Evidence
from placement_checks.core.ids import OpId
from placement_checks.core.impact import Impact
from placement_checks.core.mistakes import AVERAGE
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
    SCALES,
    SHAPE_ONLY,
    SUBTRACTION,
    VARIABLE_READS,
    VARIABLES,
    is_update,
)
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.variables import Variable
from placement_checks.rules.base import (
    Rule,
    about,
    matches_any,
    path_lines,
    unless_allowed,
)
from placement_checks.rules.requirements import Need
from placement_checks.util.text import listed, plural


@dataclass(frozen=True)
class OneUpdate(Rule):
    """One update per variable and step; the step counter increases by one.

    Several updates of one variable in one step race: apply_gradients in the loop over towers
    makes N updates instead of one, each from a part of the batch. An optimizer that is applied to
    two groups of variables changes its own scalars, such as Adam's powers of beta, twice. A
    momentum, a moving average or a target network that is updated in the loop over towers decays N
    times a step. A counter that grows by two, or not at all, makes the learning rate decay at the
    wrong time.

    Updates in sequence are allowed if each takes the gradients of all towers, computed after the
    update before it. Examples are the steps up and down of sharpness-aware minimization, several
    steps of a critic, and a loss and a penalty that are trained in different runs of a session.

    The variables in the collection GLOBAL_STEP are counters. An integer scalar is a counter if the
    step reads it, and the only value that is assigned to it is the initial value 0. A
    floating-point scalar is a counter if the loss does not depend on it, and updates use a value
    that is computed from it, such as a decayed learning rate. If an op outside of the step adds to
    a counter, the rule is not checked: the program may run that op together with the step.

    Updates in exclusive branches count once. Updates without a gradient, such as clipped weights
    or a decay, do not count, and neither do two updates that add a value and subtract it again.

    `allow` lists variables, or patterns, that are updated more often on purpose.
    """

    name = "one-update"
    kind = "requested"
    impact = Impact.TRAINING
    requires = frozenset({Need.REQUESTED})
    explained_by = ("created-in-scope",)
    threads = (
        "JayYip/m3tl#12: a step counter that grows by two",
        "auroua/InsightFace_TF#45: the same: an increment in addition to apply_gradients",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        analysis = analyze(evidence.placement)
        updates = analysis.updates
        if not updates.by_variable and not updates.unknown:
            return self.not_checked("the train op updates no variable")
        findings = unless_allowed(
            (*_repeated_updates(analysis), *_miscounts(analysis)), self.allow
        )
        if updates.missing is not None and (findings or not updates.by_variable):
            return self.without(updates.missing)
        for counter, op in () if findings else _separate_counters(analysis):
            if not matches_any(counter, self.allow):
                return self.not_checked(
                    f"the step counter '{counter}' is incremented by op '{op}', which is not part "
                    "of the train op",
                    fix="return both: {'train_op': tf.group(train_op, increment)}",
                )
        return self.verdict(findings, f"{plural(len(updates.by_variable), 'variable')} updated")


def _repeated_updates(analysis: TowerAnalysis) -> Iterator[Finding]:
    """Yield findings on variables that one step updates several times.

    The variables are trained variables, variables that each tower updates, such as moving
    averages, and scalars that updates of trained variables read, such as Adam's powers of beta.
    """
    trained = gradient_flow(analysis.placement).trained
    flow = analysis.flow
    values = (value for each in trained.values() for update in each for value in update.values)
    reads = (flow.inputs[op][0] if flow.types[op] in VARIABLE_READS else op for op in values)
    holders = map(flow.state_holder, reads)
    read_by_updates = {flow.names[holder] for holder in holders if holder is not None}
    for variable, updates in analysis.updates.by_variable.items():
        is_scalar = analysis.shapes.get(variable) == ()
        if variable in trained:
            repeated = _without_undone(
                analysis, analysis.updates.select_for_one_step(trained[variable])
            )
            if len(repeated) > 1 and _is_sequence(analysis, repeated):
                continue
        elif by_towers := _updates_by_towers(analysis, updates):
            repeated = by_towers
        elif variable in read_by_updates and is_scalar:
            repeated = analysis.updates.select_for_one_run(updates)
        else:
            continue
        if len(repeated) > 1:
            yield _repeated_update(analysis, variable, repeated, is_scalar=is_scalar)


def _repeated_update(
    analysis: TowerAnalysis, variable: str, updates: Sequence[Update], *, is_scalar: bool
) -> Finding:
    placement = analysis.placement
    count = len(updates)
    is_trained = variable in gradient_flow(placement).trained
    if is_trained:
        parts = analysis.updates.by_run(updates)
        in_turns = all(len(_turns(analysis, part)) == len(part) for part in parts)
        how = "successive" if in_turns else "unordered"
        consequence = f"{count} {how} updates instead of one"
        takes_all = [
            analysis.towers_of(*update.values) == analysis.all_towers for update in updates
        ]
        if not any(takes_all):
            consequence += ", each with a part of the batch"
        fix = f"apply once, after the loop over towers: optimizer.apply_gradients({AVERAGE})"
        if all(takes_all) and placement.strategy is None:
            fix = "update it by one call of apply_gradients: leave it out of the lists of others"
    elif not is_scalar and _updates_by_towers(analysis, updates):
        consequence = f"it decays {count} times in a step, and depends on the order of the towers"
        fix = "update it once, after the loop over towers, by the mean of the towers' values"
        if not any(_decays(analysis, update, _SCALES_TERMS) for update in updates):
            consequence = f"it holds the value of one of {count} towers, the last one that runs"
            fix = (
                "create a variable for each tower, or update it once, after the loop over towers, "
                "by the mean of the towers' values"
            )
    else:
        consequence = (
            "factors that the optimizer computes from it, such as Adam's bias correction, advance "
            f"by {count} steps in each step"
        )
        fix = "apply the optimizer once, to all of its variables, or create one "
        fix += "optimizer for each group of variables"
    return Finding(
        **about(placement.ops[variable]),
        ops=(analysis.flow.names[updates[1].op],),
        against=_right_updates(analysis, updates),
        path=path_lines(placement, [update.op for update in updates]),
        message=f"one step updates '{variable}' {count} times, by "
        f"{listed([analysis.flow.names[update.op] for update in updates])}",
        consequence=consequence,
        fix=fix,
        group_key=count,
    )


def _right_updates(analysis: TowerAnalysis, updates: Sequence[Update]) -> tuple[str, ...]:
    """Return updates that are right: the first of several updates, if another line builds it.

    If one line repeats the update, these are the updates of trained variables that run once.
    """
    names, frames = analysis.flow.names, analysis.placement.details.frames
    first, second = (names[update.op] for update in updates[:2])
    if frames(first) != frames(second):
        return (first,)
    trained = gradient_flow(analysis.placement).trained.values()
    return tuple(names[each[0].op] for each in trained if len(each) == 1)


def _without_undone(analysis: TowerAnalysis, updates: Sequence[Update]) -> Sequence[Update]:
    """The updates except pairs that add a value and then subtract the same value.

    Sharpness-aware minimization takes gradients between the two updates of such a pair.
    """
    terms = [added_term(analysis.flow, update) for update in updates]
    undone: set[int] = set()
    for later, term in enumerate(terms):
        for earlier in range(later):
            if term and terms[earlier] == (term[0], -term[1]) and earlier not in undone:
                undone |= {earlier, later}
                break
    return [update for number, update in enumerate(updates) if number not in undone]


def _is_sequence(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether each update takes gradients of all towers, computed after the updates before it.

    Runs of a session follow one another, so only updates in one run may be unordered. The order
    does not matter for gradients that depend on no variable, such as the gradient of a
    bias in a sum of outputs.
    """
    layout = variable_layout(analysis.placement)
    readers = layout.readers.get(updates[0].variable, analysis.all_towers)
    towers = gradient_flow(analysis.placement).gradient_towers
    for part in analysis.updates.by_run(updates):
        turns = _turns(analysis, part)
        if any(union(towers[op] for op in turn) & readers != readers for turn in turns):
            return False
        is_ordered = len(part) == 1 or len(turns) == len(part)
        if not is_ordered and not _depend_on_no_variable(analysis, turns):
            return False
    return True


def _turns(analysis: TowerAnalysis, updates: Sequence[Update]) -> Collection[Sequence[OpId]]:
    """Group the gradients of a variable's updates by the earlier updates that they wait for.

    The updates are in one run of a session. Gradients wait if the automatic control dependencies
    of a `tf.function` ensure it. The gradient of a
    linear layer does not depend on its own weights, so updates of other variables that are updated
    as often count too. The updates are not judged one by one: through an optimizer's slots, each
    takes the gradients of all.

    Returns:
        The last ops of the towers that compute the gradients. If each update takes gradients that
        are computed after the update before it, there are as many groups as updates.
    """
    gradients = gradient_flow(analysis.placement)
    own: dict[OpId, int] = {}
    for others in gradients.trained.values():
        repeated = sorted(
            analysis.updates.select_for_one_run(others), key=lambda update: update.op
        )
        if len(repeated) == len(updates):
            own |= {update.op: 1 << number for number, update in enumerate(repeated)}
    awaited = StepOrder(analysis.flow, analysis.updates.roots).awaited(own)
    turns: defaultdict[int, list[OpId]] = defaultdict(list)
    for update in updates:
        for op in _sources(analysis, update):
            turns[awaited[op]].append(op)
    return turns.values()


def _sources(analysis: TowerAnalysis, update: Update) -> Sequence[OpId]:
    """The last ops of the towers that compute an update's gradients.

    Without towers, all backward ops before the update.
    """
    gradients = gradient_flow(analysis.placement)
    if analysis.towers:
        return list(gradients.sources(update))
    return [op for op in gradients.ancestors(update) if analysis.backward.ops[op]]


def _depend_on_no_variable(analysis: TowerAnalysis, turns: Collection[Sequence[OpId]]) -> bool:
    types = analysis.flow.types
    sources = [op for turn in turns for op in turn]
    behind = analysis.flow.reachable(sources, until=lambda op: types[op] in SHAPE_ONLY)
    return bool(sources) and not any(types[op] in VARIABLES for op in behind)


def _updates_by_towers(analysis: TowerAnalysis, updates: Sequence[Update]) -> list[Update]:
    """Return the updates that make state decay once per tower; empty if there are fewer than two.

    Sums over towers do not decay. Statistics of batch normalization are left out: each tower may
    update them from its own rows.
    """
    repeated = analysis.updates.select_for_one_step(updates)
    if len(repeated) < 2 or len(analysis.towers) < 2:
        return []
    decays = [update for update in repeated if _decays(analysis, update)]
    masks = {analysis.towers_of(*update.values) for update in decays}
    if len(decays) < 2 or any(map(statistics(analysis.placement).is_of_normalization, decays)):
        return []
    one_of_each = all(mask.bit_count() == 1 for mask in masks) and len(masks) == len(decays)
    without_towers = masks == {0} and len(decays) == len(analysis.towers)
    return decays if one_of_each or without_towers else []


def _decays(
    analysis: TowerAnalysis, update: Update, through: Collection[str] | None = None
) -> bool:
    """Whether an update scales the variable's old value, or subtracts a part of it.

    Args:
        analysis: the program.
        update: the update.
        through: the types of the ops that may be between the old value and the update; None for
            any types.
    """
    flow = analysis.flow
    variable = flow.number[update.variable]

    def is_end(op: OpId) -> bool:
        kind = flow.types[op]
        return kind in VARIABLES or not (through is None or kind in through)

    behind = flow.reachable(update.values, until=is_end)
    if variable not in behind:
        return False
    if flow.types[update.op] not in OVERWRITES:
        return True
    only_added = flow.reachable(update.values, until=lambda op: flow.types[op] not in _KEEPS_TERMS)
    return variable not in only_added


_KEEPS_TERMS = ADDS | PASSES_READ | IDENTITIES
_SCALES_TERMS = _KEEPS_TERMS | SCALES | {SUBTRACTION}


def _miscounts(analysis: TowerAnalysis) -> Iterator[Finding]:
    if analysis.updates.unknown:
        return
    placement, by_variable = analysis.placement, analysis.updates.by_variable
    declared = [name for name in placement.step.counters if name in placement.ops]
    separate = {counter for counter, _ in _separate_counters(analysis)}
    # If no op increments a counter, the call that applies gradients is the line to edit.
    applying = [updates[-1] for updates in gradient_flow(placement).trained.values()][-1:]
    others = (*_repeated_counters(analysis), *_constant_counters(analysis))
    for counter in dict.fromkeys([*declared, *others]):
        updates = analysis.updates.select_for_one_run(by_variable.get(counter, ()))
        increment = _added_constant(analysis, updates[0]) if len(updates) == 1 else None
        if len(updates) > 1:
            fault, speed = f"incremented {len(updates)} times", len(updates)
            fix = f"let one op increment it: {_APPLY_WITH_STEP}"
            added = [analysis.flow.types[update.op] in ADDITIONS for update in updates]
            if any(added) and not all(added):
                fix = "run the op that assigns it, such as a broadcast, once before the first step"
        elif increment is not None and increment != 1:
            fault, speed = f"incremented by {increment}", increment
            fix = "increment it by 1 in each step, for any number of towers"
        elif not updates and counter not in separate and is_read(analysis, counter):
            fault, speed = "never incremented, though the step reads it", 0
            fix = f"count the step where gradients are applied: {_APPLY_WITH_STEP}"
        else:
            continue
        pace = f"advances {speed} times as fast" if speed else "stays as in the first step"
        schedule = "a schedule that depends on it, such as the decay of the learning rate,"
        yield Finding(
            **about(placement.ops[counter]),
            ops=tuple(analysis.flow.names[update.op] for update in updates[-1:] or applying),
            path=path_lines(placement, [update.op for update in updates]),
            message=f"the step counter '{counter}' is {fault}",
            group_key=fault,
            consequence=f"{schedule} {pace}",
            fix=fix,
        )


_APPLY_WITH_STEP = (
    "optimizer.apply_gradients(…, global_step=tf.compat.v1.train.get_or_create_global_step())"
)


def _separate_counters(analysis: TowerAnalysis) -> Iterator[tuple[str, str]]:
    """Yield the declared counters that a separate op increments, each with this op."""
    placement = analysis.placement
    for counter in () if analysis.updates.unknown else placement.step.counters:
        if counter in placement.ops and counter not in analysis.updates.by_variable:
            op = separate_increment(analysis, counter)
            if op is not None and is_read(analysis, counter):
                yield counter, analysis.flow.names[op]


def separate_increment(analysis: TowerAnalysis, counter: str) -> int | None:
    """Return the op that adds to a counter that the step does not update.

    The program may fetch this op together with the step.
    """
    writers = analysis.flow.writers.get(analysis.flow.number[counter], ())
    return next((op for op, _ in writers if analysis.flow.types[op] in ADDITIONS), None)


def is_read(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether the step reads a variable."""
    number = analysis.flow.number[variable]
    return any(analysis.updates.in_step[op] for op in analysis.flow.consumers[number])


def _added_constant(analysis: TowerAnalysis, update: Update) -> int | None:
    """Return the constant that an update adds; None if the value is computed."""
    if analysis.flow.types[update.op] not in ADDITIONS or not update.values:
        return None
    value = analysis.placement.details.value(analysis.flow.names[update.values[0]])
    return int(value[2]) if value is not None else None


def _repeated_counters(analysis: TowerAnalysis) -> Iterator[str]:
    """Yield possible counters that one step increments by 1 several times.

    A counter is left out if the variables that depend on it are updated as often.
    """
    counters = {
        variable.name
        for variable in analysis.placement.variables
        if _may_be_counter(analysis, variable)
    }
    for variable, updates in analysis.updates.by_variable.items():
        if variable in counters:
            times = len(analysis.updates.select_for_one_run(updates))
            increments = {_added_constant(analysis, update) for update in updates}
            is_repeated = times > 1 and increments == {1}
            if is_repeated and not _counts_other_updates(analysis, variable, times):
                yield variable


def _counts_other_updates(analysis: TowerAnalysis, counter: str, times: int) -> bool:
    """Whether all variables that depend on a counter are updated as often.

    If none depends on it, as without a schedule, one trained variable that is updated as often is
    enough: the counter of an optimizer of Keras counts its calls.
    """
    flow = analysis.flow

    def updated(op: OpId) -> str:
        holder = flow.first_holder(op) if is_update(flow.types[op]) else None
        return "" if holder is None else flow.names[holder]

    # An update of the counter yields its new value.
    reached = flow.reachable(
        [flow.number[counter]],
        along=flow.consumers,
        until=lambda op: updated(op) not in ("", counter),
    )
    dependent = set(map(updated, reached)) - {"", counter}
    by_variable = analysis.updates.by_variable

    def is_as_often(variable: str) -> bool:
        return len(analysis.updates.select_for_one_run(by_variable.get(variable, ()))) >= times

    if dependent:
        return all(map(is_as_often, dependent))
    return any(map(is_as_often, gradient_flow(analysis.placement).trained))


def _constant_counters(analysis: TowerAnalysis) -> Iterator[str]:
    """Yield possible counters that the step reads, that start at 0, and that no op changes later.

    Variables with other initial values are left out: they may be constants on purpose.
    """
    flow = analysis.flow
    for variable in analysis.placement.variables:
        if _may_be_counter(analysis, variable):
            written = [
                _written_value(analysis, op, values)
                for op, values in flow.writers.get(flow.number[variable.name], ())
                # An op that only reads the variable, such as a comparison, writes nothing.
                if is_update(flow.types[op]) or (flow.types[op] in CALLS and op not in flow.calls)
            ]
            if "zero" in written and "other" not in written and is_read(analysis, variable.name):
                yield variable.name


def _may_be_counter(analysis: TowerAnalysis, variable: Variable) -> bool:
    """Whether a variable is an integer scalar, or another scalar that a schedule depends on.

    Other floating-point scalars have other purposes: they may count events in the towers, or hold
    a learning rate or a weight of the loss, which a program can set by feeding the initializer.
    """
    return variable.shape == () and (
        variable.dtype.startswith("int") or _is_schedule_input(analysis, variable.name)
    )


def _is_schedule_input(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether updates depend on a value computed from a variable, and the loss does not.

    A learning rate is no such input: updates take it as it is, or multiplied by a factor.
    """
    flow, reads = analysis.flow, analysis.reads_by_site
    if any(map(reads.in_loss, reads.readers[variable])):
        return False
    passing = [flow.number[variable]]
    consumers: list[int] = []
    for op in passing:
        for consumer in flow.consumers[op]:
            passes_on = flow.types[consumer] in PASSES_READ
            (passing if passes_on else consumers).append(consumer)
    return any(op in reads.behind_updates and flow.types[op] not in PRODUCTS for op in consumers)


def _written_value(analysis: TowerAnalysis, op: int, values: Sequence[int]) -> str:
    """Classify the value that a writer sets: ``zero``, ``saved`` (restored), or ``other``."""
    flow = analysis.flow
    if flow.types[op] not in OVERWRITES or not values:
        return "other"
    value = values[0]
    while flow.types[value] in PASSES_VALUE and flow.inputs[value]:
        value = flow.inputs[value][0]
    if flow.types[value] in RESTORES:
        return "saved"
    if flow.types[value] != CONST:
        return "other"
    constant = analysis.placement.details.value(flow.names[value])
    return "zero" if constant is not None and constant[2] == 0 else "other"
