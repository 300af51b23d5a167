"""Find the ops that cause wrong gradients.

`numerics` compares gradients, and diagnoses the mistake that explains a difference.
`locate_mistake` finds the ops of the program that make this mistake. The other public functions
find ops by their purpose, such as reordering rows or dividing the loss.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow, union
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.variables.gradient_flow import gradient_flow, norms_of_slices
from placement_checks.core import mistakes
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import Diagnosis
from placement_checks.core.op_types import (
    ADDS,
    BATCH_NORMS,
    CAST,
    COLLECTIVE_REDUCE,
    COMBINES_WITHOUT_SUM,
    CONST,
    CUTS,
    DIVISIONS,
    ENDS_OF_CUTS,
    EXAMPLE_SOURCES,
    GATHERS,
    IDENTITIES,
    JOINS,
    MEAN,
    REORDERS,
    RESHAPES,
    SCALES,
    SHAPE_ONLY,
    STACK,
    SUM,
    SUM_OF_ROWS,
    VARIABLE_LOOKUPS,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import PathStep
from placement_checks.rules.base import path_lines
from placement_checks.rules.ranks import ranks_of
from placement_checks.rules.source_lines import blame, blame_selection, joining_ops
from placement_checks.step.row_sets import RowSets

if TYPE_CHECKING:
    _Finder = Callable[[Placement, str, Diagnosis], "MistakeLocation"]

MOVES_ROWS = REORDERS | GATHERS
_PASSES_ROWS = MOVES_ROWS | CUTS.keys() | RESHAPES | IDENTITIES | {CAST}
_PACKS = RESHAPES | IDENTITIES | {CAST, STACK}
_PASSES_LOSS = ADDS | SCALES | IDENTITIES | {CAST}  # ops that combine the parts of a loss


class MistakeLocation(NamedTuple):
    """The ops that are wrong, and the source lines that lead to them.

    Attributes:
        ops: the names of the ops; empty if they are unknown.
        frames: the source lines to show; empty to show all lines that built the ops.
        path: further evidence, one line each.
        fix: the change to make if it is not the fix of the mistake.
    """

    ops: Sequence[str] = ()
    frames: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    fix: str = ""


def locate_mistake(placement: Placement, variable: str, diagnosis: Diagnosis) -> MistakeLocation:
    """Return the ops that make the gradient of a variable wrong.

    The result is empty if the ops are unknown, or if none of them has a source line, as in a
    library function that averages gradients.
    """
    find = _FINDERS.get(diagnosis.mistake)
    location = MistakeLocation(diagnosis.ops)
    if find is not None:
        location = find(placement, variable, diagnosis)
    return location if any(map(placement.details.frames, location.ops)) else MistakeLocation()


def _location(placement: Placement, ops: Iterable[int]) -> MistakeLocation:
    names = analyze(placement).flow.names
    return MistakeLocation([names[op] for op in ops])


def _joining_ops(placement: Placement, variable: str) -> list[OpId]:
    return list(joining_ops(placement, gradient_flow(placement).trained.get(variable, ())))


def _find_sum(placement: Placement, variable: str, _: Diagnosis) -> MistakeLocation:
    """Return the ops that add up gradients; under a `tf.distribute` strategy, the losses.

    If replicas add up their gradients twice, these are the first sums. For ranks of Horovod, these
    are the ops that add up gradients, because ranks can average gradients.
    """
    joining, flow = _joining_ops(placement, variable), analyze(placement).flow
    if placement.strategy and not ranks_of(placement) and _are_added_again(placement, variable):
        return _location(placement, joining)._replace(fix=_ADDED_AGAIN)
    losses = [producer_of(name) for name in _objectives(placement, variable)]
    has_losses = any(map(placement.details.frames, losses))
    if placement.strategy and not ranks_of(placement) and has_losses:
        return MistakeLocation([name for name in losses if name in placement.ops])
    return _location(placement, [_sum_of(flow, op) for op in joining])


_ADDED_AGAIN = (
    "remove this sum: the gradients of all replicas are added up again before the update"
)


def _are_added_again(placement: Placement, variable: str) -> bool:
    """Return whether replicas add up sums of their gradients in later collectives."""
    gradients, flow = gradient_flow(placement), analyze(placement).flow
    joining = set(_joining_ops(placement, variable))
    return any(
        flow.types[op] == COLLECTIVE_REDUCE
        and op not in joining
        and not joining.isdisjoint(flow.reachable([op]))
        for update in gradients.trained.get(variable, ())
        for op in gradients.ancestors(update)
    )


def _objectives(placement: Placement, variable: str) -> Sequence[str]:
    """The tensors whose gradients train a variable; all objectives if these are unknown.

    Steps that alternate, such as generator and discriminator, have different objectives.
    """
    step = placement.step
    gradients = set(step.gradients_by_variable.get(variable, ()))
    own = [
        name for name in step.objectives if not gradients.isdisjoint(step.gradients.get(name, ()))
    ]
    return own or step.objectives


def _sum_of(flow: DataFlow, op: OpId) -> OpId:
    """Return the op that adds up gradients that ``op`` joins; ``op`` itself if it joins none."""
    if flow.types[op] not in JOINS | {STACK}:
        return op
    return next((each for each in flow.consumers[op] if flow.types[each] == SUM), op)


def _find_division(placement: Placement, variable: str, diagnosis: Diagnosis) -> MistakeLocation:
    """Return the division of the loss, or else the ops that combine gradients.

    A division of gradients is not a mistake, as it is part of any mean, unless a strategy combines
    them. If losses are added up, one division by the number of towers is right, so the wrong
    division may be by the square of this number.
    """
    ratio = diagnosis.ratio or 0.0
    scalings = loss_scalings(placement, ratio)
    scalings = scalings or loss_scalings(placement, ratio / max(1, len(analyze(placement).towers)))
    if placement.strategy and not scalings:
        scalings = [
            op
            for joining in _joining_ops(placement, variable)
            for op, factor in _scaled_before(placement, joining)
            if math.isclose(factor, ratio, rel_tol=1e-3)
        ]
    return _location(placement, scalings or _joining_ops(placement, variable))


def _find_weights(placement: Placement, variable: str, _: Diagnosis) -> MistakeLocation:
    """Return the call that combines the gradients, and the constants that weight them."""
    for op in _joining_ops(placement, variable):
        for gradient in gradient_flow(placement).gradient_inputs(op):
            location = _calling_line(placement, op, gradient, blame_selection)
            return location._replace(path=tuple(_weights(placement, op)))
    return MistakeLocation()


def _weights(placement: Placement, op: OpId) -> Iterator[PathStep]:
    """Yield a line for each constant that multiplies a gradient before an op combines them."""
    for scale, factor in _scaled_before(placement, op):
        line = path_lines(placement, [scale])[0]
        yield PathStep(f"{factor:g} x in {line}", line.op)


def _scaled_before(placement: Placement, op: OpId) -> Iterator[tuple[OpId, float]]:
    """Yield the ops that multiply a gradient before an op combines them, and their factors."""
    analysis = analyze(placement)
    backward, types = analysis.backward.ops, analysis.flow.types
    for gradient in gradient_flow(placement).gradient_inputs(op):
        for scale in sorted(analysis.flow.reachable([gradient], until=backward.__getitem__)):
            if types[scale] in SCALES and not backward[scale]:
                yield from ((scale, factor) for factor in _factors(placement, scale))


def scaled_gradients(placement: Placement, variable: str) -> Sequence[str]:
    """Return the ops that multiply single gradients by constants before an op combines them."""
    names = analyze(placement).flow.names
    return [
        names[scale]
        for op in _joining_ops(placement, variable)
        for scale, _ in _scaled_before(placement, op)
    ]


def _find_change(placement: Placement, variable: str, _: Diagnosis) -> MistakeLocation:
    """Return the call that changes a tower's gradient before the gradients are combined."""
    backward = analyze(placement).backward.ops
    for op in _joining_ops(placement, variable):
        for gradient in gradient_flow(placement).gradient_inputs(op):
            if not backward[gradient]:
                return _calling_line(placement, gradient, gradient)
    return MistakeLocation()


def _calling_line(
    placement: Placement, op: OpId, gradient: OpId, blamed: Callable[..., tuple[str, ...]] = blame
) -> MistakeLocation:
    """Return an op, with its source lines down to the function that computes ``gradient``."""
    analysis = analyze(placement)
    names, backward = analysis.flow.names, analysis.backward.ops
    behind = sorted(analysis.flow.reachable([gradient], until=backward.__getitem__))
    computed = next((names[op] for op in behind if backward[op]), names[gradient])
    return MistakeLocation([names[op]], blamed(placement, [names[op]], [computed]))


def _find_counts(placement: Placement, variable: str, diagnosis: Diagnosis) -> MistakeLocation:
    """Return the divisions of the losses, or else the call that combines the gradients."""
    location = _location(placement, placement.cached(count_divisions))
    return location if location.ops else _find_weights(placement, variable, diagnosis)


def joint_losses(placement: Placement, variable: str) -> Sequence[str]:
    """Return the objectives of a variable that combine the losses of several towers."""
    analysis, flow = analyze(placement), analyze(placement).flow
    objectives = [producer_of(name) for name in _objectives(placement, variable)]
    return [
        name
        for name in objectives
        if name in flow.number and analysis.towers_of(flow.number[name]).bit_count() > 1
    ]


def decays(placement: Placement, variable: str) -> Sequence[OpId]:
    """Return the ops that add a multiple of a variable to its gradients.

    If there are none, the result is the updates of the variable that take no gradients.
    """
    analysis = analyze(placement)
    flow, backward = analysis.flow, analysis.backward.ops
    updates = [update.op for update in gradient_flow(placement).trained.get(variable, ())]
    added = [
        term
        for op in sorted(flow.reachable(updates, until=backward.__getitem__))
        if flow.types[op] in ADDS and not backward[op] and op not in updates
        for term in flow.inputs[op]
        if not analysis.has_gradient(term)
        and not analysis.examples[term]
        and any(flow.names[each] == variable for each in flow.reachable([term]))
    ]
    others = (update.op for update in analysis.updates.by_variable.get(variable, ()))
    return added or [op for op in others if op not in updates]


def before_decay(placement: Placement, variable: str) -> tuple[str, ...]:
    """Return the gradients of a variable that a decay is added to."""
    analysis = analyze(placement)
    backward = analysis.backward.ops
    updates = analysis.updates.by_variable.get(variable, ())
    values = [value for update in updates for value in update.values]
    behind = sorted(analysis.flow.reachable(values, until=backward.__getitem__))
    return tuple(analysis.flow.names[op] for op in behind if backward[op])


def _find_decay(placement: Placement, variable: str, _: Diagnosis) -> MistakeLocation:
    """Return the ops that add a decay, with the lines down to the call that adds it."""
    location = _location(placement, decays(placement, variable))
    right = before_decay(placement, variable)
    return location._replace(frames=blame(placement, location.ops, right))


def rows_of_other_towers(
    placement: Placement, variable: str
) -> tuple[OpId, Sequence[TowerIndex]] | None:
    """Find an op that adds gradients of a tower to rows that only other towers looked up.

    Sparse gradients (`tf.IndexedSlices`) are averaged correctly if both the values and the indices
    of all towers are concatenated. All towers may look up the same positions.

    Returns:
        The op, and the towers whose rows it leaves out. None if there is no such op.
    """
    analysis, gradients = analyze(placement), gradient_flow(placement)
    flow = analysis.flow
    of_towers = placement.cached(_looked_up).get(variable, {})
    if len(of_towers) < 2:
        return None
    for update in gradients.trained[variable]:
        for op in (update.op, *sorted(gradients.ancestors(update))):
            is_sum_of_rows = flow.types[op] == SUM_OF_ROWS and not analysis.backward.ops[op]
            sources = list(zip(flow.inputs[op], placement.by_number[op].inputs, strict=False))
            integers = [
                source
                for source, name in sources
                if (tensor := analysis.tensor(name)) and tensor.dtype in ("int32", "int64")
            ]
            if not integers or not (op == update.op or is_sum_of_rows):
                continue
            values = (source for source, _ in sources if source not in integers)
            taken = union(gradients.gradient_towers[source] for source in values)
            behind = flow.reachable(integers)
            known = {
                rows for own in of_towers.values() for at, rows in own.items() if at in behind
            }
            left_out = [
                tower
                for tower in analysis.towers_in(taken & analysis.all_towers)
                if tower in of_towers and known.isdisjoint(of_towers[tower].values())
            ]
            if left_out:
                return op, left_out
    return None


def _looked_up(
    placement: Placement,
) -> Mapping[str, Mapping[TowerIndex, Mapping[OpId, Hashable]]]:
    """The indices of sparse gradients, by variable and tower: the ops, and keys of the values.

    The gradient of a lookup flattens the indices (python/ops/array_grad.py).
    """
    analysis, ops = analyze(placement), placement.by_number
    towers, key = gradient_flow(placement).gradient_towers, placement.cached(RowSets).key
    found: dict[str, dict[TowerIndex, dict[OpId, Hashable]]]
    found = defaultdict(lambda: defaultdict(dict))
    for op, (forward, _) in analysis.backward.forward.items():
        if analysis.flow.types[forward] not in VARIABLE_LOOKUPS | GATHERS:
            continue
        holder = analysis.layers.passed_on[analysis.flow.inputs[forward][0]]
        tower = single_tower(towers[op] & analysis.all_towers)
        is_flat = analysis.flow.types[op] in RESHAPES
        if not is_flat or ops[op].inputs[0] != ops[forward].inputs[1]:
            continue
        if holder is not None and tower is not None:
            found[analysis.flow.names[holder]][tower][op] = key(ops[op].inputs[0])
    return found


def combining_op(placement: Placement, variable: str) -> OpId | None:
    """Return the op that combines gradients of towers otherwise than by a sum, if there is one."""
    flow = analyze(placement).flow
    for op in _joining_ops(placement, variable):
        ops = flow.consumers[op] if flow.types[op] in JOINS | {STACK} else [op]
        if found := next((each for each in ops if flow.types[each] in COMBINES_WITHOUT_SUM), None):
            return found
    return None


def _finder(find: Callable[[Placement], Sequence[OpId]]) -> _Finder:
    return lambda placement, *_: _location(placement, placement.cached(find))


def loss_scalings(placement: Placement, ratio: float) -> Sequence[OpId]:
    """Return the ops that multiply the losses by a number, or divide them by its inverse."""
    flow = analyze(placement).flow
    losses = flow.known_ops(placement.step.objectives or placement.step.losses)
    return [
        op
        for op in loss_terms(flow, losses)
        if flow.types[op] in SCALES
        and any(math.isclose(factor, ratio, rel_tol=1e-3) for factor in _factors(placement, op))
    ]


def loss_scale(placement: Placement, one: Placement | Missing, ratio: float) -> OpId | None:
    """Return the op that multiplies the losses by a factor of their gradients, if there is one.

    If the factor is the number of towers, gradients may also be added up. Then the program for one
    GPU, ``one``, must lack such an op.
    """
    is_sum = math.isclose(ratio, len(analyze(placement).towers), rel_tol=1e-3)
    if ratio <= 1 or (is_sum and (not one or loss_scalings(one, ratio))):
        return None
    return next(iter(loss_scalings(placement, ratio)), None)


def loss_terms(flow: DataFlow, losses: Iterable[OpId], more: Collection[str] = ()) -> list[OpId]:
    """Return losses and the ops that they combine, also through op types in ``more``."""
    passes = _PASSES_LOSS.union(more)
    return sorted(flow.reachable(losses, until=lambda op: flow.types[op] not in passes))


def _factors(placement: Placement, op: OpId) -> Iterator[float]:
    flow = analyze(placement).flow
    for number, source in enumerate(flow.inputs[op]):
        value = placement.details.value(flow.names[source]) if flow.types[source] == CONST else ()
        if not value or len(value) != 3 or not isinstance(value[2], int | float):
            continue
        if flow.types[op] not in DIVISIONS:
            yield value[2]
        elif number == 1 and value[2]:
            yield 1 / value[2]


def count_divisions(placement: Placement) -> Sequence[OpId]:
    """Return the divisions of towers' losses by a number computed from the tower's examples.

    A number of rows does not count: it comes from the shape of the examples.
    """
    analysis = analyze(placement)
    flow = analysis.flow
    return [
        op
        for op in loss_terms(flow, chain(*analysis.losses.by_tower), {SUM})
        if flow.types[op] in DIVISIONS
        and analysis.tower_of[op] is not None
        and _is_count(analysis, flow.inputs[op][1])
    ]


def _is_count(analysis: TowerAnalysis, op: OpId) -> bool:
    """Return whether an op yields a scalar computed from values of examples."""
    flow = analysis.flow
    outputs = analysis.placement.details.outputs(flow.names[op])
    if not outputs or outputs[0].shape != () or not analysis.examples[op]:
        return False
    behind = flow.reachable([op], until=lambda op: flow.types[op] in SHAPE_ONLY)
    return any(
        analysis.examples[source] and flow.types[source] in EXAMPLE_SOURCES for source in behind
    )


def penalties(placement: Placement) -> Sequence[OpId]:
    """Return the terms of towers' losses that depend on no example, such as weight penalties."""
    analysis = analyze(placement)
    flow = analysis.flow
    return [
        term
        for op in loss_terms(flow, chain(*analysis.losses.by_tower))
        if flow.types[op] in ADDS and analysis.examples[op]
        for term in flow.inputs[op]
        if not analysis.examples[term] and flow.types[term] != CONST
    ]


def batch_statistics(placement: Placement) -> Sequence[OpId]:
    """Return the ops of towers that reduce over rows, if the model uses their results."""
    analysis = analyze(placement)
    forward = [
        op
        for op in analysis.flow.having((BATCH_NORMS | {MEAN, SUM}).__contains__)
        if analysis.examples[op] and not analysis.backward.ops[op]
        if analysis.tower_of[op] is not None
    ]
    norms = [op for op in forward if analysis.flow.types[op] in BATCH_NORMS]
    return norms or [op for op in forward if _reduces_rows(analysis, op)]


def _reduces_rows(analysis: TowerAnalysis, op: OpId) -> bool:
    """Return whether an op reduces over rows, and its result is used to compute rows."""
    rows = _row_dimension(analysis, analysis.flow.inputs[op][0])
    if not rows or _row_dimension(analysis, op) == rows:
        return False

    def consumers(op: OpId) -> Iterator[OpId]:
        used = analysis.flow.consumers[op]
        return (consumer for consumer in used if not analysis.backward.ops[consumer])

    def has_rows(op: OpId) -> bool:
        return _row_dimension(analysis, op) == rows

    return any(map(has_rows, analysis.flow.reachable([op], along=consumers, until=has_rows)))


def _row_dimension(analysis: TowerAnalysis, op: OpId) -> tuple[int | None, ...]:
    """Return the first dimension of an op's output; empty if it is a scalar."""
    outputs = analysis.placement.details.outputs(analysis.flow.names[op])
    return tuple(outputs[0].shape or ())[:1] if outputs else ()


def frozen_reads(placement: Placement, variable: str, towers: Sequence[int]) -> Sequence[OpId]:
    """Return the ops that keep towers from training a variable.

    The result is a mask, which is a factor that depends on no variable and no example. If there is
    no mask, the result is the towers' reads of the variable.
    """
    analysis = analyze(placement)
    reads = [
        op
        for op in analysis.reads_by_site.readers.get(variable, ())
        if analysis.tower_of[op] in towers and not analysis.backward.ops[op]
    ]
    flow = analysis.flow
    masks = (
        factor
        for op in reads
        for factor in (flow.inputs[op] if flow.types[op] in SCALES else ())
        if not analysis.examples[factor]
        and all(flow.state_holder(each) is None for each in flow.reachable([factor]))
    )
    return list(islice(masks, 1)) or reads


def ops_in_towers(placement: Placement, op_type: str) -> Sequence[OpId]:
    """Return the forward ops of one type that depend on the examples of a single tower."""
    analysis = analyze(placement)
    return [
        op
        for op in analysis.flow.having(lambda kind: kind == op_type)
        if analysis.examples[op]
        and not analysis.backward.ops[op]
        and analysis.tower_of[op] is not None
    ]


def moved_inputs(placement: Placement) -> Sequence[OpId]:
    """Return the ops that reorder rows of inputs, or else the ops that slice inputs."""
    return list(_ops_on_rows(placement, MOVES_ROWS)) or list(_ops_on_rows(placement, CUTS.keys()))


def slice_ends(placement: Placement) -> Sequence[OpId]:
    """Return the op that computes where the last tower's rows end.

    If the end is a constant, the result is the op that slices the rows.
    """
    flow = analyze(placement).flow
    cuts = list(_ops_on_rows(placement, CUTS.keys()))
    if not cuts:
        return ()
    last = max(cuts)
    end = ENDS_OF_CUTS.get(flow.types[last])
    ends = [] if end is None else flow.inputs[last][end : end + 1]
    behind = sorted(flow.reachable(ends, until=lambda op: flow.types[op] not in _PACKS))
    computed = [op for op in behind if flow.types[op] not in _PACKS | {CONST}]
    return computed[:1] or [last]


def _ops_on_rows(placement: Placement, types: Collection[str]) -> Iterator[OpId]:
    """Return the first ops of some types between the inputs of the step and the model.

    Only the first such op on a path counts: later ops may be part of the model, such as a
    selection of features.
    """
    analysis = analyze(placement)
    flow = analysis.flow
    # The placeholders that the program lists, or else all sources of examples.
    inputs = [producer_of(name) for names in placement.step.inputs for name in names]
    start = [flow.number[name] for name in inputs] or flow.having(EXAMPLE_SOURCES.__contains__)

    def passing(here: OpId) -> Iterator[OpId]:
        for op in flow.consumers[here]:
            kind, is_forward = flow.types[op], not analysis.backward.ops[op]
            # An index, such as into an embedding, contains no rows.
            has_rows = kind in _PASSES_ROWS and flow.inputs[op][CUTS.get(kind, 0)] == here
            if has_rows and is_forward and analysis.updates.in_step[op]:
                yield op

    def is_found(op: OpId) -> bool:
        return flow.types[op] in types and op not in start

    return filter(is_found, sorted(flow.reachable(start, along=passing, until=is_found)))


# By the key of the mistake.
_FINDERS: Mapping[str, _Finder] = {
    **dict.fromkeys([mistakes.SUM.key, mistakes.SUM_OF_BATCHES.key], _find_sum),
    mistakes.SUM_OF_LOSSES.key: lambda placement, variable, _: MistakeLocation(
        joint_losses(placement, variable)
    ),
    **dict.fromkeys([mistakes.DIVIDED.key, mistakes.LOSSES_DIVIDED.key], _find_division),
    **{
        mistake.key: _find_weights
        for mistake in (
            *(mistakes.UNEVEN, mistakes.OPPOSED, mistakes.SIZES, mistakes.ROWS),
            mistakes.ONE_TOWER,
        )
    },
    **dict.fromkeys([mistakes.CHANGED.key, mistakes.CHANGED_IN_TOWERS.key], _find_change),
    mistakes.NORM_OF_SLICES.key: lambda placement, *_: MistakeLocation(
        placement.cached(norms_of_slices)
    ),
    mistakes.STATISTICS.key: _finder(batch_statistics),
    mistakes.OWN_ROWS.key: lambda placement, _, diagnosis: _location(
        placement, ops_in_towers(placement, diagnosis.op_type)
    ),
    **dict.fromkeys([mistakes.OWN_COUNTS.key, mistakes.COUNTS_OR_STATISTICS.key], _find_counts),
    **{
        mistake.key: _finder(penalties)
        for mistake in (
            *(mistakes.PENALTY_REPEATED, mistakes.PENALTY_TOO_SMALL, mistakes.OTHER_PENALTY),
        )
    },
    mistakes.DECAY.key: _find_decay,
    mistakes.FROZEN.key: lambda placement, variable, diagnosis: _location(
        placement, frozen_reads(placement, variable, diagnosis.towers)
    ),
    mistakes.MOVED.key: _finder(moved_inputs),
    mistakes.TAIL.key: _finder(slice_ends),
}
