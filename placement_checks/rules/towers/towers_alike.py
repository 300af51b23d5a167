from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from placement_checks.analysis.graph.op_differences import Difference, differences
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.objectives import lone_penalties
from placement_checks.analysis.variables.step_changes import step_changes
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.impact import Impact
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, first_of_each, unless_allowed
from placement_checks.rules.catalog import state_mistake
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_creation
from placement_checks.rules.step_equality import compare_with_one_gpu
from placement_checks.step.objective import LonePenalty


@dataclass(frozen=True)
class TowersAlike(Rule):
    """The towers are the same computation on different devices.

    Towers that differ train different models with one set of weights, and the mean of their
    gradients is the gradient of no model. Nothing fails, because the shapes agree.

    The rule compares the loss of each tower with the first tower's loss, op by op, back to
    variables and inputs. Each difference is a finding: another op, another attribute, another
    constant. The usual causes are an `if` on the number of the tower, and an argument that only
    one tower gets. If each tower has several losses, such as the two losses of a GAN, the towers
    must agree, for each variable, on the loss that trains it.

    Not findings: the sizes of the slices that towers cut; seeds; a factor of a whole loss, as for
    towers with unequal numbers of rows; a regularization loss that one tower adds for all towers,
    before or after such a factor; and computations outside of the loss, such as an accuracy.

    A penalty on the weights that one tower adds alone, such as weight decay, counts 1/N if the
    gradients of N towers are averaged. This is a doubt, because its coefficient may already be
    multiplied by N. If the program can be compared with one GPU, gradients-averaged decides.

    `allow` lists ops, or patterns such as tower_0/aux/*, in which towers differ on purpose.
    """

    name = "towers-alike"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.MODEL
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES, Need.LOSSES_APART})
    uses = frozenset({Need.SINGLE_GPU, Need.REFERENCE})
    intended = "the towers differ in these ops"

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyze(placement)
        losses, towers = analysis.losses, analysis.towers
        uncomparable = ""
        findings = []
        for number in analysis.tower_indices[1:]:
            first, other = losses.by_tower[0], losses.by_tower[number]
            if other_losses := list(_other_losses(analysis, number)):
                findings += other_losses
                continue
            if len(first) != len(other):
                uncomparable = uncomparable or (
                    f"the towers on {towers[0]} and {towers[number]} have {len(first)} and "
                    f"{len(other)} losses: they cannot be compared"
                )
                continue
            findings += [
                _finding(analysis, number, difference)
                for difference in _differences(analysis, number, first, other)
            ]
        if not compare_with_one_gpu(evidence):
            findings += [_doubt(analysis, each) for each in lone_penalties(placement)]
        findings = first_of_each(unless_allowed(findings, self.allow))
        if uncomparable and not findings:
            return self.not_checked(uncomparable)
        return self.verdict(findings, f"{len(towers)} towers")


def _differences(
    analysis: TowerAnalysis, number: TowerIndex, losses: Sequence[OpId], others: Sequence[OpId]
) -> Iterator[Difference]:
    """Compare losses of the first tower with losses of another tower."""
    shared = analysis.towers[0].reads.keys() & analysis.towers[number].reads.keys()
    return differences(analysis, losses, others, shared)


def _other_losses(analysis: TowerAnalysis, number: TowerIndex) -> Iterator[Finding]:
    """Yield a finding for each variable that a tower trains with another loss than tower 0."""
    by_tower = analysis.losses.by_tower
    order, other_order = sorted(by_tower[0]), sorted(by_tower[number])
    if len(order) == len(other_order) == 1 or analysis.losses.joint:
        return
    trained: dict[tuple[OpId, OpId], dict[str, OpId]] = defaultdict(dict)
    for variable in gradient_flow(analysis.placement).trained:
        losses = _losses_of(analysis, variable)
        first, others = losses[TowerIndex(0)], losses[number]
        if len(first) == len(others) == 1:
            (loss,), ((other, gradient),) = first, others.items()
            trained[loss, other][variable] = gradient
    for (loss, other), variables in trained.items():
        if loss not in order or other not in other_order:
            continue
        is_same = len(order) == len(other_order) and order.index(loss) == other_order.index(other)
        if not is_same and any(_differences(analysis, number, [loss], [other])):
            for variable, gradient in variables.items():
                yield _other_loss(analysis, number, (loss, other), variable, gradient)


def _losses_of(analysis: TowerAnalysis, variable: str) -> Mapping[TowerIndex, dict[OpId, OpId]]:
    """Return the losses that train a variable, by tower, with the ops of the gradients."""
    placement, number = analysis.placement, analysis.flow.number
    gradients, changes = gradient_flow(placement), step_changes(placement)
    terms = [
        changes.change(analysis.flow.names[update.op]).term
        for update in gradients.trained[variable]
    ]
    taken = {producer_of(tensor) for tensor in changes.gradients_in(terms)}
    taken &= {*placement.step.gradients_by_variable.get(variable, ())}
    found: dict[TowerIndex, dict[OpId, OpId]] = defaultdict(dict)
    for objective, ops in placement.step.gradients.items():
        loss = number.get(producer_of(objective))
        if loss is None or loss not in analysis.loss_ops:
            continue
        for op in sorted(number[each] for each in taken.intersection(ops)):
            tower = single_tower(gradients.gradient_towers[op] & analysis.all_towers)
            if tower is not None:
                found[tower][loss] = op
    return found


def _other_loss(
    analysis: TowerAnalysis,
    number: TowerIndex,
    losses: tuple[OpId, OpId],
    variable: str,
    gradient: OpId,
) -> Finding:
    """Return the finding on a variable that the first tower trains with another loss."""
    placement, names = analysis.placement, analysis.flow.names
    loss, other = (names[each] for each in losses)
    first, tower = analysis.towers[0], analysis.towers[number]
    facts = {"loss": other, "tower": tower, "expected": loss, "first": first}
    return state_mistake(
        placement,
        variable,
        mistakes.OTHER_LOSS,
        {**facts, "variable": variable},
        losses[1:],
        ops=(names[gradient],),
        group_key=losses,
        devices=tower.devices,
    )


def _finding(analysis: TowerAnalysis, number: int, difference: Difference) -> Finding:
    placement, flow = analysis.placement, analysis.flow
    name, original = flow.names[difference.other], flow.names[difference.op]
    odd = _odd_variable(analysis, number, difference)
    where = placement.where(original)
    is_added = flow.inputs[difference.op] and not flow.inputs[difference.other]
    at = f", {where}" if where and where != placement.where(name) else ""
    facts = {"tower": analysis.towers[number], "op": name, "found": difference.found}
    of_first = {"first": analysis.towers[0], "original": original}
    return state_mistake(
        placement,
        name,
        mistakes.OTHER_OP,
        {**facts, **of_first, "expected": f"{difference.expected}{at}"},
        difference.path,
        group_key=(difference.expected, difference.found),
        # An op that only the first tower applies to its inputs.
        ops=(original,) if is_added else (),
        frames=blame_creation(placement, odd, differs=True) if odd else (),
        devices=(*analysis.towers[number].devices, *analysis.towers[0].devices),
    )


def _odd_variable(analysis: TowerAnalysis, number: int, difference: Difference) -> str | None:
    """Return the variable whose creation makes two towers differ; None if it is another line.

    It is the op that differs, or a variable that only one of both towers has, if the line of the
    op that differs builds ops of both.
    """
    placement, flow = analysis.placement, analysis.flow
    if flow.types[difference.other] in VARIABLES:
        return flow.names[difference.other]
    forms = {variable.name: variable[1:] for variable in placement.variables}
    more, fewer = analysis.towers[number].reads, analysis.towers[0].reads
    op, counterpart = flow.names[difference.other], 0
    if len(more) < len(fewer):
        more, fewer = fewer, more
        op, counterpart = flow.names[difference.op], number
    left = Counter(forms[each] for each in fewer)
    left.subtract(forms[each] for each in more)
    odd = [each for each in more if left[forms[each]] < 0]
    where = placement.where(op) or ""
    is_of_both = odd and any(
        tower == counterpart and placement.where(flow.names[each]) == where
        for each, tower in enumerate(analysis.tower_of)
    )
    return odd[-1] if is_of_both else None


def _doubt(analysis: TowerAnalysis, penalty: LonePenalty) -> Finding:
    """Return the doubt on a penalty that one tower adds alone."""
    placement, flow = analysis.placement, analysis.flow
    kind, op = tower_kind(placement), flow.number[penalty.op]
    loss = flow.op_of(penalty.objective)
    path = flow.path(loss, op.__eq__) or (loss, op)
    tower = analysis.tower_of[loss]
    where = "" if tower is None else f" on {analysis.towers[tower]}"
    counts = (
        f"on {penalty.variable} is in the loss of the {kind}{where} alone, and gradients of "
        f"{penalty.towers} {kind}s are averaged, so it counts 1/{penalty.towers}"
    )
    finding = state_mistake(
        placement,
        penalty.op,
        mistakes.PENALTY_TOO_SMALL,
        {"op": f" {penalty.op}", "counts": counts},
        path,
        # The op that adds the penalty to values that depend on examples.
        ops=(flow.names[next(filter(analysis.examples.__getitem__, path[::-1]), loss)],),
        group_key=penalty.objective,
        is_doubt=True,
    )
    return replace(
        finding,
        fix=f"add the penalty to the loss of every {kind}, because gradients are averaged; if its "
        f"coefficient is already multiplied by {penalty.towers}, it is right",
    )
