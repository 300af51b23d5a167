"""Inputs: the examples that each tower computes with, and how its loss averages over rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.op_types import (
    ADDS,
    CAST,
    CONVOLUTIONS,
    DIVISIONS,
    IDENTITIES,
    ITERATORS,
    JOINS,
    MATRIX_PRODUCT,
    MEAN,
    NEGATION,
    PASSES_VALUE,
    PRODUCTS,
    QUEUES,
    RANDOM_SEEDED,
    RANDOM_STATELESS,
    RESHAPES,
    SHAPE_ONLY,
    STACK,
    SUM,
    TAKES_PART,
    TRANSPOSE,
)
from placement_checks.core.placement import producer_of, with_output
from placement_checks.step.row_sets import RowSets
from placement_checks.step.tensor_ops import is_elementwise

_PIPELINES = ITERATORS | QUEUES
_TERMS = ADDS | JOINS | RESHAPES | IDENTITIES | PASSES_VALUE | {CAST, NEGATION, STACK}


class Use(NamedTuple):
    """A tensor that a tower computes with.

    Attributes:
        source: the placeholder, pipeline output or random op that the tensor is computed from.
        tower: the number of the tower.
        tensor: the name of the tensor, such as ``split:1``.
        op: the op of the tower that takes the tensor.
    """

    source: OpId
    tower: TowerIndex
    tensor: str
    op: OpId


def input_uses(analysis: TowerAnalysis, rows: RowSets) -> Iterator[Use]:
    """Yield every tensor of examples that a tower computes with in a step."""
    sources = [analysis.flow.number[name] for name in rows.inputs]
    return _uses(analysis, sources, lambda tensor: bool(rows.of(tensor)))


def random_uses(analysis: TowerAnalysis, rows: RowSets) -> Iterator[Use]:
    """Yield every tensor of random numbers for rows that a tower computes its loss with."""
    sources = analysis.flow.having((RANDOM_SEEDED | RANDOM_STATELESS.keys()).__contains__)

    def is_random(tensor: str) -> bool:
        known = analysis.tensor(tensor)
        is_scalar = known is not None and known.shape == ()
        return not is_scalar and not rows.of(tensor) and not rows.varies(tensor)

    for use in _uses(analysis, sources, is_random):
        in_loss = analysis.reads_by_site.in_loss(use.op)
        if in_loss and applies_to_rows(analysis, rows, [use.tensor.removesuffix(":0")], [use.op]):
            yield use


def applies_to_rows(
    analysis: TowerAnalysis, rows: RowSets, numbers: Iterable[str], readers: Iterable[OpId]
) -> bool:
    """Whether random numbers are applied to the rows of a batch, each row to its own numbers.

    Numbers may also be applied to all rows alike: the noise or mask of a layer, which has the
    shape of the weights, numbers in place of weights, such as a random projection, and a mask of
    features, which is broadcast over the rows.

    Args:
        analysis: the program.
        rows: the rows of tensors.
        numbers: the tensors of random numbers, without ``:0``.
        readers: the ops that may read them.
    """
    flow, ops = analysis.flow, analysis.placement.by_number
    drawn, todo = set(numbers), [*readers]
    reached = set(todo)
    is_applied = False
    for op in todo:
        name = flow.names[op]
        data = [each.removesuffix(":0") for each in ops[op].inputs if not each.startswith("^")]
        own = [each for each in data if each in drawn]
        if not own:
            continue
        others = [each for each in data if each not in drawn]
        with_rows = [each for each in others if rows.of(each)]
        if not with_rows and not any(map(rows.varies, others)):
            drawn |= {*outputs_of(analysis, name)}
            new = [
                each
                for each in flow.consumers[op]
                if each not in reached
                and analysis.updates.in_step[each]
                and not analysis.backward.ops[each]
                and flow.types[each] not in SHAPE_ONLY
            ]
            reached |= {*new}
            todo += new
            continue
        is_applied = True
        if with_rows and own == data[1:] and _takes_weights(analysis, op):
            continue
        is_alike = not with_rows or _is_broadcast_over_rows(analysis, own[0], op)
        if not is_alike or not is_elementwise(flow.types[op]):
            return True
    return not is_applied


def _takes_weights(analysis: TowerAnalysis, op: OpId) -> bool:
    """Whether the second operand of an op has no rows, if the first one has its rows first."""
    kind, name = analysis.flow.types[op], analysis.flow.names[op]
    if kind in CONVOLUTIONS:
        return True
    rows = producer_of(analysis.placement.ops[name].inputs[0])
    is_turned = analysis.placement.details.attributes(name).get("transpose_a", False)
    is_turned = is_turned or analysis.placement.ops[rows].type == TRANSPOSE
    return kind == MATRIX_PRODUCT and not is_turned


def outputs_of(analysis: TowerAnalysis, op: str) -> Iterator[str]:
    """Yield the names of the outputs of an op, without ``:0``."""
    yield op
    for output in range(1, len(analysis.placement.details.outputs(op))):
        yield f"{op}:{output}"


def _is_broadcast_over_rows(analysis: TowerAnalysis, numbers: str, op: OpId) -> bool:
    """Whether an elementwise op applies a tensor to every row of another tensor."""
    tensor, result = analysis.tensor(numbers), analysis.tensor(analysis.flow.names[op])
    if tensor is None or result is None or tensor.shape is None or result.shape is None:
        return False
    return len(tensor.shape) < len(result.shape) or (tensor.shape[0] == 1 and result.shape[0] != 1)


def _uses(
    analysis: TowerAnalysis, sources: Iterable[OpId], is_wanted: Callable[[str], bool]
) -> Iterator[Use]:
    """Yield the tensors that towers compute with, for each source that they are computed from.

    Args:
        analysis: the program.
        sources: the ops that examples or random numbers come from.
        is_wanted: whether a tensor that is computed from a source counts.
    """
    consumers: dict[str, list[OpId]] = defaultdict(list)
    for number, op in zip(analysis.flow.ops, analysis.placement.by_number, strict=True):
        in_forward = analysis.updates.in_step[number] and not analysis.backward.ops[number]
        if in_forward and op.type not in SHAPE_ONLY:
            for tensor in op.inputs:
                if not tensor.startswith("^"):
                    consumers[with_output(tensor)].append(number)
    outputs: dict[str, set[str]] = defaultdict(set)
    for tensor in consumers:
        outputs[producer_of(tensor)].add(tensor)
    for source in sources:
        seen = set(outputs[analysis.flow.names[source]])
        todo = sorted(seen)
        while todo:
            tensor = todo.pop()
            if not is_wanted(tensor):
                continue
            for consumer in consumers[tensor]:
                tower = analysis.tower_of[consumer]
                if tower is not None and analysis.flow.types[consumer] not in TAKES_PART:
                    yield Use(source, tower, tensor, consumer)
                else:
                    further = outputs[analysis.flow.names[consumer]] - seen
                    seen |= further
                    todo += sorted(further)


def towers_reading(analysis: TowerAnalysis, tensor: str) -> frozenset[TowerIndex]:
    """Return the towers that compute with a tensor in a step, directly or through the host."""
    flow, ops, tower_of = analysis.flow, analysis.placement.by_number, analysis.tower_of
    name = tensor.removesuffix(":0")
    readers = [
        op
        for op in flow.consumers[flow.op_of(tensor)]
        if any(source.removesuffix(":0") == name for source in ops[op].inputs)
    ]

    def is_skipped(op: OpId) -> bool:
        return bool(analysis.backward.ops[op] or not analysis.updates.in_step[op])

    reached = flow.reachable(
        readers, flow.consumers, until=lambda op: is_skipped(op) or tower_of[op] is not None
    )
    towers = (tower_of[op] for op in reached if not is_skipped(op))
    return frozenset(tower for tower in towers if tower is not None)


def single_tower_pipelines(
    analysis: TowerAnalysis, uses: Sequence[Use]
) -> Iterator[tuple[OpId, TowerIndex]]:
    """Return the iterators and queues that feed only one tower, each with its tower."""
    feeds: dict[OpId, set[TowerIndex]] = defaultdict(set)
    for use in uses:
        holder = analysis.flow.first_holder(use.source)
        if holder is not None and analysis.flow.types[holder] in _PIPELINES:
            feeds[holder].add(use.tower)
    return ((holder, min(towers)) for holder, towers in feeds.items() if len(towers) == 1)


class LossScales(NamedTuple):
    """How a loss scales its sums over examples.

    The loss is a mean over rows if each divisor is a number of rows, and no factor is a number of
    rows.

    Attributes:
        divisors: the tensors that divide sums over examples.
        factors: the tensors that multiply the loss.
    """

    divisors: list[str]
    factors: list[str]


def loss_scales(analysis: TowerAnalysis, loss: OpId) -> LossScales | None:
    """Return how a loss scales its sums over examples.

    Returns:
        The scales; None if a term of the loss is neither a mean nor a sum with a divisor.
    """
    found = LossScales([], [])
    todo = [(loss, "")]
    for op, divisor in todo:
        kind, inputs = analysis.flow.types[op], analysis.flow.inputs[op]
        if not analysis.examples[op]:
            continue
        if kind in PRODUCTS or kind in DIVISIONS:
            value, scale = (0, 1) if kind in DIVISIONS or analysis.examples[inputs[0]] else (1, 0)
            by = analysis.placement.by_number[op].inputs[scale]
            if kind in DIVISIONS and analysis.examples[inputs[value]]:
                divisor = by
            elif kind in PRODUCTS and not analysis.examples[inputs[scale]]:
                found.factors.append(by)
            else:
                return None
            todo.append((inputs[value], divisor))
        elif kind in _TERMS or (kind in (SUM, MEAN) and _is_of_terms(analysis, inputs[0])):
            todo += [(term, divisor) for term in inputs]
        elif kind == SUM and divisor:
            found.divisors.append(divisor)
        elif kind != MEAN:
            return None
    return found


def _is_of_terms(analysis: TowerAnalysis, op: OpId) -> bool:
    """Whether an op yields a scalar, or stacks terms of a sum."""
    outputs = analysis.placement.details.outputs(analysis.flow.names[op])
    return analysis.flow.types[op] == STACK or [output.shape for output in outputs] == [()]
