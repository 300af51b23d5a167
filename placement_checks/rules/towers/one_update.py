from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.running_statistics import statistics
from placement_checks.analysis.variables.step_changes import step_changes
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import OpId
from placement_checks.core.impact import Impact
from placement_checks.core.op_types import (
    ADDITIONS,
    CALLS,
    CONST,
    OVERWRITES,
    PASSES_VALUE,
    RESTORES,
    SHAPE_ONLY,
    VARIABLES,
    is_update,
)
from placement_checks.core.placement import producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.variables import Variable
from placement_checks.rules.base import (
    Rule,
    matches_any,
    unless_allowed,
)
from placement_checks.rules.catalog import state_mistake
from placement_checks.rules.requirements import Need
from placement_checks.step.changes import Change
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
    Scalars of the optimizer and moving averages may then be updated as often as the weights.
    If another run takes the gradients of the first towers only, the rule is not checked: the
    program may run it in place of the others, for a short batch.

    Updates that only add different gradients, such as w.assign_sub(rate * gradient), are one sum
    if all gradients are computed before the first of them. Whether this is the sum of one GPU is
    the question of equal-to-one-gpu.

    The variables in the collection GLOBAL_STEP are counters. An integer scalar is a counter if the
    step reads it, and the only value that is assigned to it is the initial value 0. A
    floating-point scalar is a counter if the loss does not depend on it, and updates use a value
    that is computed from it, such as a decayed learning rate. All that a step adds to a counter,
    and subtracts from it, must add up to 1. If a step sets a counter in GLOBAL_STEP, or adds a
    number that it computes, the rule is not checked. If an op outside of the step adds to such a
    counter, it is not checked either: the program may run that op together with the step.

    Updates in exclusive branches count once. Updates without a gradient, such as clipped weights
    or a decay, do not count, and neither do two updates that add a value and subtract it again.

    `allow` lists variables, or patterns, that are updated more often on purpose.
    """

    name = "one-update"
    kind = "requested"
    impact = Impact.TRAINING
    requires = frozenset({Need.REQUESTED})
    states = FactKind.REPEATED
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
        for variable in () if findings else gradient_flow(evidence.placement).trained:
            repeated = _several(analysis, variable)
            if repeated and not matches_any(variable, self.allow):  # perhaps alternatives
                names = [analysis.flow.names[update.op] for update in repeated]
                return self.not_checked(
                    f"different runs update '{variable}', by {listed(names)}, and not all of them "
                    "take the gradients of all towers; whether one step runs several of them is "
                    "unknown",
                    fix="if they are alternatives, such as for a short batch, declare it: "
                    f"--set one-update.allow={variable}",
                )
        for counter, op in () if findings else _unread_counters(analysis):
            if not matches_any(counter, self.allow):
                return self.not_checked(
                    f"op '{op}' changes the step counter '{counter}', and the graph does not "
                    "state by how much",
                    fix=f"add 1 to it, or declare it: --set one-update.allow={counter}",
                )
        return self.verdict(findings, f"{plural(len(updates.by_variable), 'variable')} updated")


def _repeated_updates(analysis: TowerAnalysis) -> Iterator[Finding]:
    """Yield findings on variables that one step updates several times.

    The variables are trained variables, variables that each tower updates, such as moving
    averages, and scalars that updates of trained variables read, such as Adam's powers of beta.
    """
    trained = gradient_flow(analysis.placement).trained
    for variable, updates in analysis.updates.by_variable.items():
        is_scalar = analysis.shapes.get(variable) == ()
        if variable in trained:
            repeated = _several(analysis, variable)
            if _may_be_alternatives(analysis, repeated):
                continue
        elif by_towers := _updates_by_towers(analysis, updates):
            repeated = by_towers
        else:
            repeated = _updates_of_scalar(analysis, variable) if is_scalar else []
        if len(repeated) > 1:
            yield _repeated_update(analysis, variable, repeated, is_scalar=is_scalar)


def _repeated_update(
    analysis: TowerAnalysis, variable: str, updates: Sequence[Update], *, is_scalar: bool
) -> Finding:
    placement = analysis.placement
    count = len(updates)
    is_trained = variable in gradient_flow(placement).trained
    mistake, also = mistakes.STATE_OF_OPTIMIZER, ""
    how = parts = ""
    if is_trained:
        runs = analysis.updates.by_run(updates)
        in_turns = all(len(_turns(analysis, run)) == len(run) for run in runs)
        how = "successive" if in_turns else "unordered"
        takes_all = [_takes_all(analysis, [update]) for update in updates]
        parts = "" if any(takes_all) else ", each with a part of the batch"
        mistake = mistakes.APPLIED_BY_EACH
        if all(takes_all) or placement.strategy is not None:
            mistake = mistakes.APPLIED_AGAIN
            changes = step_changes(placement)
            terms = [_change(analysis, update).term for update in updates]
            if len({frozenset(changes.gradients_in([term])) for term in terms}) > 1:
                also = "or compute each of the gradients after the update before it"
    elif not is_scalar and _updates_by_towers(analysis, updates):
        sets = all(_change(analysis, update).factor is None for update in updates)
        mistake = mistakes.STATE_OF_LAST if sets else mistakes.STATE_OF_EACH
    names = [analysis.flow.names[update.op] for update in updates]
    facts = {"variable": variable, "count": count, "updates": listed(names)}
    return state_mistake(
        placement,
        variable,
        mistake,
        {**facts, "how": how, "parts": parts, "declared": also},
        [update.op for update in updates],
        ops=(names[1],),
        against=_right_updates(analysis, updates),
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
    if len(updates) < 2:
        return updates
    changes = step_changes(analysis.placement)
    made = [_change(analysis, update) for update in updates]
    undone: set[int] = set()
    for later, change in enumerate(made):
        for earlier in range(later):
            if earlier not in undone and changes.is_undone(made[earlier], change):
                undone |= {earlier, later}
                break
    return [update for number, update in enumerate(updates) if number not in undone]


def _change(analysis: TowerAnalysis, update: Update) -> Change:
    return step_changes(analysis.placement).change(analysis.flow.names[update.op])


def _several(analysis: TowerAnalysis, variable: str) -> Sequence[Update]:
    """The updates of a trained variable by gradients, if they are not one sum or a sequence."""
    trained = gradient_flow(analysis.placement).trained[variable]
    updates = _without_undone(analysis, analysis.updates.select_for_one_step(trained))
    if len(updates) < 2 or _is_sum(analysis, updates) or _is_sequence(analysis, updates):
        return []
    return updates


def _is_sum(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether updates in one run only add gradients of the values before."""
    changes = step_changes(analysis.placement)
    made = [_change(analysis, update) for update in updates]
    return len(analysis.updates.by_run(updates)) == 1 and changes.is_sum(made)


def _is_sequence(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether each update takes gradients of all towers, computed after the updates before it.

    Runs of a session follow one another, so only updates in one run may be unordered.
    """
    runs = analysis.updates.by_run(updates)
    return all(_is_ordered(analysis, run) and _takes_all(analysis, run) for run in runs)


def _may_be_alternatives(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether some runs of a session take the gradients of all towers, and others of the first.

    A program may run the latter in place of the former: a short batch fills the first towers.
    """
    runs = analysis.updates.by_run(updates) if updates else []
    towers = gradient_flow(analysis.placement).gradient_towers
    complete = [_takes_all(analysis, run) for run in runs]
    if len(set(complete)) < 2 or not all(_is_ordered(analysis, run) for run in runs):
        return False
    for run, takes_all in zip(runs, complete, strict=True):
        found = union(towers[op] for turn in _turns(analysis, run) for op in turn)
        found &= analysis.all_towers
        if not takes_all and (not found or found & (found + 1)):
            return False
    return True


def _takes_all(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether each turn of updates takes the gradients of all towers that read the variable."""
    layout = variable_layout(analysis.placement)
    readers = layout.readers.get(updates[0].variable, analysis.all_towers)
    towers = gradient_flow(analysis.placement).gradient_towers
    turns = _turns(analysis, updates)
    return all(union(towers[op] for op in turn) & readers == readers for turn in turns)


def _is_ordered(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether the gradients of each update in a run wait for the update before it.

    The order does not matter for gradients that depend on no variable, such as the gradient of a
    bias in a sum of outputs.
    """
    turns = _turns(analysis, updates)
    is_ordered = len(updates) == 1 or len(turns) == len(updates)
    return is_ordered or _depend_on_no_variable(analysis, turns)


def _turns(analysis: TowerAnalysis, updates: Sequence[Update]) -> Collection[Sequence[OpId]]:
    """Group the gradients of a variable's updates by the earlier updates that they wait for.

    The updates are in one run of a session. Gradients wait if the automatic control dependencies
    of a `tf.function` ensure it. The gradient of a linear layer does not depend on its own
    weights, so updates of other variables that are updated as often count too. The updates are not
    judged one by one: through an optimizer's slots, each takes the gradients of all.

    Returns:
        The backward ops that compute the gradients. If each update takes gradients that are
        computed after the update before it, there are as many groups as updates.
    """
    changes, flow = step_changes(analysis.placement), analysis.flow
    own: dict[str, int] = {}
    for others in gradient_flow(analysis.placement).trained.values():
        repeated = sorted(
            analysis.updates.select_for_one_run(others), key=lambda update: update.op
        )
        if len(repeated) == len(updates):
            own |= {flow.names[update.op]: number for number, update in enumerate(repeated)}
    turns: defaultdict[frozenset[int], list[OpId]] = defaultdict(list)
    for update in updates:
        for tensor in changes.gradients_in([_change(analysis, update).term]):
            op = producer_of(tensor)
            awaited = own.keys() & changes.graph.awaited_by(op)
            turns[frozenset(own[name] for name in awaited)].append(flow.op_of(op))
    return turns.values()


def _depend_on_no_variable(analysis: TowerAnalysis, turns: Collection[Sequence[OpId]]) -> bool:
    types = analysis.flow.types
    sources = [op for turn in turns for op in turn]
    behind = analysis.flow.reachable(sources, until=lambda op: types[op] in SHAPE_ONLY)
    return bool(sources) and not any(types[op] in VARIABLES for op in behind)


def _updates_of_scalar(analysis: TowerAnalysis, variable: str) -> Sequence[Update]:
    """The updates in one run of a fraction that updates of trained variables depend on.

    Empty if these trained variables are updated as often. Updates that set a value do not count.
    """
    changes = step_changes(analysis.placement)
    updates = analysis.updates.by_variable[variable]
    repeated = [
        update
        for update in analysis.updates.select_for_one_run(updates)
        if changes.depends_on_old(_change(analysis, update))
    ]
    integers = {each.name for each in analysis.placement.variables if each.dtype.startswith("int")}
    if len(repeated) < 2 or variable in integers:
        return []
    is_used = bool(_trained_by(analysis, variable))
    return repeated if is_used and not _is_for_each_update(analysis, repeated) else []


def _trained_by(analysis: TowerAnalysis, variable: str) -> Sequence[str]:
    """The trained variables whose updates by gradients depend on a variable."""
    changes, trained = step_changes(analysis.placement), gradient_flow(analysis.placement).trained
    return [
        name
        for name, updates in trained.items()
        if any(changes.depends(_change(analysis, each), variable) for each in updates)
    ]


def _is_for_each_update(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether trained variables depend on the updated variable, and are updated as often."""
    variable = updates[0].variable
    is_used = bool(_trained_by(analysis, variable))
    return is_used and _counts_other_updates(analysis, variable, len(updates))


def _updates_by_towers(analysis: TowerAnalysis, updates: Sequence[Update]) -> list[Update]:
    """Return the updates that make state decay once per tower; empty if there are fewer than two.

    Sums over towers do not decay. Updates without towers count if they are in one run, unless
    trained variables are updated as often. Statistics of batch normalization are left out: each
    tower may update them from its own rows.
    """
    repeated = analysis.updates.select_for_one_step(updates)
    if len(repeated) < 2 or len(analysis.towers) < 2:
        return []
    # New values that are no sum of the old value and a term, but depend on it.
    changes = step_changes(analysis.placement)
    decays = [update for update in repeated if changes.decays(_change(analysis, update))]
    masks = {analysis.towers_of(*update.values) for update in decays}
    if len(decays) < 2 or any(map(statistics(analysis.placement).is_of_normalization, decays)):
        return []
    one_of_each = all(mask.bit_count() == 1 for mask in masks) and len(masks) == len(decays)
    is_one_run = len(analysis.updates.by_run(decays)) == 1
    without_towers = masks == {0} and is_one_run and len(decays) == len(analysis.towers)
    if without_towers and (
        _follow_other_updates(analysis, decays) or _is_for_each_update(analysis, decays)
    ):
        return []
    return decays if one_of_each or without_towers else []


def _follow_other_updates(analysis: TowerAnalysis, updates: Sequence[Update]) -> bool:
    """Whether each update takes trained variables after other updates of them.

    For example, an average follows each of several steps of a critic.
    """
    changes, trained = step_changes(analysis.placement), gradient_flow(analysis.placement).trained
    states = [changes.states(_change(analysis, update)) for update in updates]
    taken = [frozenset(each for each in found if each[0] in trained) for found in states]
    return all(taken) and len(set(taken)) == len(taken)


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
        increment = _increment(analysis, updates)
        if increment == len(updates) > 1:
            mistake = mistakes.COUNTED_AGAIN
        elif increment not in (None, 0, 1):
            mistake = mistakes.COUNTED_BY_MORE
        elif increment == 0 or (
            not updates and counter not in separate and _is_read(analysis, counter)
        ):
            mistake = mistakes.NOT_COUNTED
        else:
            continue
        yield state_mistake(
            placement,
            counter,
            mistake,
            {"counter": counter, "count": increment},
            [update.op for update in updates],
            ops=tuple(analysis.flow.names[update.op] for update in updates[-1:] or applying),
            group_key=(mistake.key, increment),
        )


def _separate_counters(analysis: TowerAnalysis) -> Iterator[tuple[str, str]]:
    """Yield the declared counters that a separate op increments, each with this op."""
    placement = analysis.placement
    for counter in () if analysis.updates.unknown else placement.step.counters:
        if counter in placement.ops and counter not in analysis.updates.by_variable:
            op = _separate_increment(analysis, counter)
            if op is not None and _is_read(analysis, counter):
                yield counter, analysis.flow.names[op]


def _unread_counters(analysis: TowerAnalysis) -> Iterator[tuple[str, str]]:
    """Yield the declared counters that an op of the step sets or changes by an unknown number."""
    for counter in () if analysis.updates.unknown else analysis.placement.step.counters:
        updates = analysis.updates.by_variable.get(counter, ())
        for update in analysis.updates.select_for_one_run(updates):
            if _increment(analysis, [update]) is None:
                yield counter, analysis.flow.names[update.op]
                break


def _separate_increment(analysis: TowerAnalysis, counter: str) -> int | None:
    """Return the op that adds to a counter that the step does not update.

    The program may fetch this op together with the step.
    """
    writers = analysis.flow.writers.get(analysis.flow.number[counter], ())
    return next((op for op, _ in writers if analysis.flow.types[op] in ADDITIONS), None)


def _is_read(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether the step reads a variable."""
    number = analysis.flow.number[variable]
    return any(analysis.updates.in_step[op] for op in analysis.flow.consumers[number])


def _increment(analysis: TowerAnalysis, updates: Sequence[Update]) -> int | None:
    """Return the number that updates add to a counter in one run.

    It is None without updates, or if one of them adds no constant. If a condition decides between
    two constants, the larger one counts: a step whose gradients are infinite adds nothing.
    """
    changes = step_changes(analysis.placement)
    numbers = [changes.increments(_change(analysis, update)) for update in updates]
    found = [max(each) for each in numbers if each]
    return int(sum(found)) if found and len(found) == len(updates) else None


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
            repeated = analysis.updates.select_for_one_run(updates)
            times = len(repeated)
            adds_one = all(_increment(analysis, [update]) == 1 for update in repeated)
            if times > 1 and adds_one and not _counts_other_updates(analysis, variable, times):
                yield variable


def _counts_other_updates(analysis: TowerAnalysis, counter: str, times: int) -> bool:
    """Whether all variables that depend on a counter are updated as often.

    If none depends on it, as without a schedule, one trained variable that is updated as often is
    enough: the counter of an optimizer of Keras counts its calls.
    """
    changes = step_changes(analysis.placement)
    by_variable = analysis.updates.by_variable

    def is_as_often(variable: str) -> bool:
        return len(analysis.updates.select_for_one_run(by_variable.get(variable, ()))) >= times

    dependent = [
        variable
        for variable, updates in by_variable.items()
        if variable != counter
        and any(changes.depends(_change(analysis, each), counter) for each in updates)
    ]
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
            if "zero" in written and "other" not in written and _is_read(analysis, variable.name):
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
    reads, changes = analysis.reads_by_site, step_changes(analysis.placement)
    if any(map(reads.in_loss, reads.readers[variable])):
        return False
    return any(
        changes.computes_with(_change(analysis, update), variable)
        for other, updates in analysis.updates.by_variable.items()
        for update in updates
        if other != variable
    )


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
