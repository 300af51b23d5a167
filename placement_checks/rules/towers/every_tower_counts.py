from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import Mistake
from placement_checks.core.op_types import SCALES
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.rules.base import Rule, about, matches_any, path_lines
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_branch, blame_selection
from placement_checks.rules.step_equality import compare_with_one_gpu, towers_left_out
from placement_checks.step.comparison import State
from placement_checks.util.text import plural, range_text


@dataclass(frozen=True)
class EveryTowerCounts(Rule):
    """Each variable's update depends on the loss of every tower that reads the variable.

    A tower has computed for nothing if the update does not take its gradients. Common causes: only
    the last tower's gradients are applied, one tower's gradients are added twice, or one
    variable's gradient is lost behind a tf.stop_gradient.

    Each variable is judged by the towers that read it, or that read a copy of it if it is
    mirrored. Gradients that are summed up over several steps, in variables or accumulators, count.
    A tower whose gradients are all multiplied by 0 does not count, which is seen if the program
    can be compared with one GPU.

    `allow` lists variables, or patterns, that only some towers train on purpose.
    """

    name = "every-tower-counts"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.LOST
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES_APART, Need.TRAINED})
    uses = frozenset({Need.SINGLE_GPU, Need.REFERENCE})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        gradients = gradient_flow(placement)
        layout = variable_layout(placement)
        used = {
            variable: union(map(gradients.towers, updates))
            for variable, updates in gradients.trained.items()
        }
        missing = {
            variable: [
                tower for tower in layout.read_as(variable) if not used[variable] >> tower & 1
            ]
            for variable in gradients.trained
            if not matches_any(variable, self.allow)
        }
        for variable, towers in _without_weight(evidence).items():
            if not missing.get(variable, [0]):  # no tower is missing so far
                # Towers with unsynchronized copies read another variable.
                missing[variable] = [each for each in towers if each in layout.read_as(variable)]
                used[variable] &= ~sum(1 << tower for tower in missing[variable])
        never_used = set.intersection(*map(set, missing.values())) if missing else set()
        findings = [
            _finding(placement, variable, towers, used[variable], never_used.issuperset(towers))
            for variable, towers in missing.items()
            if towers
        ]
        return self.verdict(findings, plural(len(used), "variable"))

    def headline(self, findings: Sequence[Finding]) -> str:
        """Name the towers without an effect, and count the variables."""
        unused = findings[0].devices
        if not unused:
            return ""
        verb, whose = ("counts", "its") if len(unused) == 1 else ("count", "their")
        towers = range_text(device.short for device in unused)
        variables = plural(len(findings), "variable")
        return f"{towers} never {verb}: the update of {variables} does not use {whose} gradients"


def _without_weight(evidence: Evidence) -> Mapping[str, Sequence[TowerIndex]]:
    """For each variable the towers whose gradients of all variables are multiplied by 0."""
    compared = compare_with_one_gpu(evidence)
    if isinstance(compared, Missing):
        return {}
    _, equality = compared
    found = {}
    for name in equality.trained:
        if equality.variables[name].state is not State.DIFFERS:
            return {}
        found[equality.copies[name][0]] = {*towers_left_out(evidence.placement, equality, name)}
    lost = set.intersection(*found.values()) if found else set()
    return dict.fromkeys(found, sorted(lost)) if lost else {}


def _finding(
    placement: Placement,
    variable: str,
    missing: Sequence[TowerIndex],
    used: int,
    never_used: bool,
) -> Finding:
    """Return the finding on an update that takes gradients of ``used``, but not of ``missing``.

    ``never_used`` is whether no update of any variable takes gradients of the missing towers.
    """
    analysis = analyze(placement)
    update = gradient_flow(placement).trained[variable][0]
    lost = sum(1 << number for number in missing)
    verb = "reads" if len(missing) == 1 else "read"
    towers = analysis.names_of(used) if used else "no tower"
    read_as = variable_layout(placement).read_as(variable)
    what = "it" if set(read_as.values()) == {variable} else "its copy"
    how = f"only with gradients of {towers}" if used else "without gradients of any tower"
    look_at, right, mistake, facts = _advice(placement, update)
    found = mistake.stated(
        tower_kind(placement),
        variable=variable,
        how=how,
        left_out=analysis.names_of(lost),
        reads=f"{verb} {what}",
        **facts,
    )
    return Finding(
        **about(placement.ops[variable]),
        ops=(look_at,),
        # The line that combines the gradients of another variable is right.
        frames=blame_branch(placement, look_at)
        if mistake is mistakes.LEFT_OUT_OF_LOOP
        else blame_selection(placement, (look_at,), right),
        group_key=(tuple(missing), used, never_used),
        devices=analysis.devices_of(lost),
        path=(
            *path_lines(placement, [update.op]),
            *(
                PathStep(f"the tower on {analysis.towers[number]} reads {what}: {reader}", reader)
                for number in missing
                if (reader := analysis.towers[number].reads[read_as[number]])
            ),
        ),
        message=found.what,
        consequence=_consequence(analysis, lost, used, never_used),
        fix=found.fix,
    )


def _consequence(analysis: TowerAnalysis, missing: int, used: int, never_used: bool) -> str:
    if not used:
        return "the variable learns from none of the examples"
    lost, all_towers = missing.bit_count(), len(analysis.towers)

    def part(towers: int) -> str:
        return "half" if 2 * towers == all_towers else f"{towers}/{all_towers}"

    if never_used:
        verb = "computes" if lost == 1 else "compute"
        ignored = f"{part(lost)} of each batch is ignored"
        return f"{analysis.names_of(missing)} {verb} for nothing: {ignored}"
    learned = part(all_towers - lost)
    return f"the variable learns from only {learned} of each batch, and other variables from more"


def _advice(
    placement: Placement, update: Update
) -> tuple[str, Sequence[str], Mistake, Mapping[str, Any]]:
    """Choose the op to look at, right ops, and the mistake, for an update that leaves towers out.

    The op is the first of these that exists: the op that combines the gradients of this variable;
    the op that combines the gradients of another variable; the first op outside the towers that
    takes this gradient; the update.
    """
    analysis, gradients = analyze(placement), gradient_flow(placement)
    names, kind = analysis.flow.names, analysis.flow.types[update.op]
    combining = _combining_op(placement, update)
    if combining is not None:
        op = combining if placement.where(names[combining]) else update.op
        return names[op], _gradients_taken(placement, op), mistakes.LEFT_OUT_OF_SUM, {}
    if (combined := placement.cached(_combined_variable)) is not None:
        variable, its_op = combined
        sparse = _INDEXED_SLICES if "Scatter" in kind or "Sparse" in kind else ""
        return its_op, (), mistakes.LEFT_OUT_OF_LOOP, {"other": variable, "sparse": sparse}
    for op in sorted(gradients.ancestors(update)):
        is_outside = analysis.tower_of[op] is None and not analysis.backward.ops[op]
        takes_gradient = op != update.op and is_outside and gradients.gradient_inputs(op)
        if takes_gradient and (name := _name_if_located(placement, op)):
            return name, _gradients_taken(placement, op), mistakes.LEFT_OUT_OF_SUM, {}
    return names[update.op], _gradients_taken(placement, update.op), mistakes.LEFT_OUT, {}


def _gradients_taken(placement: Placement, op: OpId) -> Sequence[str]:
    """Return the gradients that an op takes, if it takes one of each tower or none.

    Then the op is right, and its list of gradients is too short. If it takes two gradients of a
    tower, the op itself is wrong.
    """
    analysis, gradients = analyze(placement), gradient_flow(placement)
    taken = gradients.gradient_inputs(op)
    towers = [gradients.gradient_towers[each] & analysis.all_towers for each in taken]
    if sum(map(int.bit_count, towers)) > union(towers).bit_count():
        return ()
    backward = analysis.backward.ops
    behind = analysis.flow.reachable(taken, until=backward.__getitem__)
    return [analysis.flow.names[each] for each in behind if backward[each]]


def _combined_variable(placement: Placement) -> tuple[str, str] | None:
    """Return the first variable with combined gradients, and the op that combines them."""
    for variable, (update, *_) in gradient_flow(placement).trained.items():
        combining = _combining_op(placement, update)
        if combining is not None and (op := _name_if_located(placement, combining)):
            return variable, op
    return None


def _name_if_located(placement: Placement, op: OpId) -> str | None:
    name = analyze(placement).flow.names[op]
    return name if placement.where(name) else None


def _combining_op(placement: Placement, update: Update) -> OpId | None:
    """Return the first op that adds gradients to each other, or to a variable."""
    analysis, gradient_inputs = analyze(placement), gradient_flow(placement).gradient_inputs
    behind = gradient_flow(placement).ancestors(update)
    sums = (
        op
        for op in behind
        if not analysis.backward.ops[op]
        and analysis.flow.types[op] not in SCALES
        and len(gradient_inputs(op)) > 1
    )
    writers = (
        writer
        for holder in behind
        for writer, values in analysis.flow.writers.get(holder, ())
        if writer != update.op and gradient_inputs(writer) and not set(behind).isdisjoint(values)
    )
    # Ops outside of the towers are preferred.
    return min(
        (*sums, *writers), key=lambda op: (analysis.tower_of[op] is not None, op), default=None
    )


_INDEXED_SLICES = "; IndexedSlices cannot be added: tf.concat their values and their indices"
