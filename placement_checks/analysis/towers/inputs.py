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
    DIVISIONS,
    EXAMPLE_SOURCES,
    IDENTITIES,
    ITERATORS,
    JOINS,
    MEAN,
    NEGATION,
    PASSES_VALUE,
    PRODUCTS,
    QUEUES,
    RANDOM_SEEDED,
    RANDOM_STATELESS,
    RESHAPES,
    SCALES,
    SHAPE_ONLY,
    STACK,
    SUM,
    TAKES_PART,
)
from placement_checks.core.placement import producer_of
from placement_checks.step.row_sets import RowSets

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
    sources = analysis.flow.having(EXAMPLE_SOURCES.__contains__)
    return _uses(analysis, sources, lambda _, tensor: bool(rows.of(tensor)))


def random_uses(analysis: TowerAnalysis) -> Iterator[Use]:
    """Yield every tensor of random numbers, except scalars, that a tower computes with in a step.

    Random numbers that apply to all rows alike are left out: the noise of a variational layer,
    which has the shape of the weights, and a mask of features, which is broadcast over the rows.
    """
    flow = analysis.flow
    draws = flow.having((RANDOM_SEEDED | RANDOM_STATELESS.keys()).__contains__)
    if not draws:
        return
    from_examples = flow.propagate([int(kind in EXAMPLE_SOURCES) for kind in flow.types])

    def has_rows(_source: OpId, tensor: str) -> bool:
        op = flow.op_of(tensor)
        of_weights = analysis.layers.by_op[op] is not None or from_examples[op]
        return not of_weights and _holds_examples(analysis, tensor, fed=False, rows=None)

    for use in _uses(analysis, draws, has_rows):
        drawn = flow.op_of(use.tensor)
        is_noise = flow.types[use.op] in ADDS | SCALES and not any(
            from_examples[op] for op in flow.inputs[use.op] if op != drawn
        )
        is_same_for_rows = is_noise or _is_broadcast_over_rows(analysis, use)
        if not is_same_for_rows and analysis.reads_by_site.in_loss(use.op):
            yield use


def _is_broadcast_over_rows(analysis: TowerAnalysis, use: Use) -> bool:
    """Whether an elementwise op applies a tensor to every row of another tensor."""
    tensor, result = analysis.tensor(use.tensor), analysis.tensor(analysis.flow.names[use.op])
    if analysis.flow.types[use.op] not in ADDS | SCALES or tensor is None or result is None:
        return False
    if tensor.shape is None or result.shape is None:
        return False
    return len(tensor.shape) < len(result.shape) or (tensor.shape[0] == 1 and result.shape[0] != 1)


def _uses(
    analysis: TowerAnalysis, sources: Iterable[OpId], is_wanted: Callable[[OpId, str], bool]
) -> Iterator[Use]:
    """Yield the tensors that towers compute with, for each source that they are computed from.

    Args:
        analysis: the program.
        sources: the ops that examples or random numbers come from.
        is_wanted: whether a tensor computed from a source counts.
    """
    consumers: dict[str, list[OpId]] = defaultdict(list)
    for number, op in zip(analysis.flow.ops, analysis.placement.by_number, strict=True):
        in_forward = analysis.updates.in_step[number] and not analysis.backward.ops[number]
        if in_forward and op.type not in SHAPE_ONLY:
            for tensor in op.inputs:
                if not tensor.startswith("^"):
                    consumers[tensor if ":" in tensor else f"{tensor}:0"].append(number)
    outputs: dict[str, set[str]] = defaultdict(set)
    for tensor in consumers:
        outputs[producer_of(tensor)].add(tensor)
    for source in sources:
        seen = set(outputs[analysis.flow.names[source]])
        todo = sorted(seen)
        while todo:
            tensor = todo.pop()
            if not is_wanted(source, tensor):
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


def _holds_examples(analysis: TowerAnalysis, tensor: str, *, fed: bool, rows: int | None) -> bool:
    """Whether a tensor can have a row for each example.

    A fed vector of fixed size is assumed to hold class weights or the like, unless it has ``rows``
    elements. A fed tensor of unknown shape is assumed to be a scalar, such as a dropout rate.
    """
    known = analysis.tensor(tensor)
    if known is None:
        return True
    if known.shape is None:
        return not fed
    return len(known.shape) > 1 or (
        len(known.shape) == 1 and (known.shape[0] in (None, rows) or not fed)
    )


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
