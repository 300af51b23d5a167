"""Inputs: the examples that each tower computes with, and how its loss averages over rows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.op_types import (
    ADDS,
    CAST,
    DIVISIONS,
    EXAMPLE_SOURCES,
    IDENTITIES,
    INDEXED_SLICE,
    ITERATORS,
    JOINS,
    MEAN,
    NEGATION,
    PASSES_VALUE,
    PLACEHOLDERS,
    PRODUCTS,
    QUEUES,
    RANDOM_SEEDED,
    RANDOM_STATELESS,
    RESHAPES,
    SCALES,
    SHAPE_ONLY,
    SLICE,
    SPLITS,
    STACK,
    SUM,
    TAKES_PART,
)
from placement_checks.core.placement import producer_of

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


def input_uses(analysis: TowerAnalysis) -> Iterator[Use]:
    """Yield every tensor of examples that a tower computes with in a step."""
    listed = analysis.placement.step.inputs
    times = Counter(producer_of(name) for names in listed for name in set(names))
    # A placeholder that the program lists for one of several towers is fed only the rows of this
    # tower.
    of_one_tower = {name for name, count in times.items() if count == 1 and len(listed) > 1}
    rows = _rows_fed(analysis)

    def holds_examples(source: OpId, tensor: str) -> bool:
        name, kind = analysis.flow.names[source], analysis.flow.types[source]
        is_fed = kind in PLACEHOLDERS and name not in of_one_tower
        fed = analysis.tensor(name)
        if rows is not None and fed is not None and fed.shape and fed.shape[0] == rows:
            is_fed = False  # a tower may take a vector of fewer rows
        if fed is not None and fed.shape is None and _takes_rows(analysis, source):
            is_fed = False  # it is no scalar
        return _holds_examples(analysis, tensor, fed=is_fed, rows=rows)

    sources = analysis.flow.having(EXAMPLE_SOURCES.__contains__)
    return _uses(analysis, sources, holds_examples)


def _takes_rows(analysis: TowerAnalysis, source: OpId) -> bool:
    """Whether an op cuts rows from an input. A single element may be a size or another setting."""
    flow, details = analysis.flow, analysis.placement.details
    cuts = [
        op for op in flow.consumers[source] if flow.types[op] in SPLITS | {SLICE, INDEXED_SLICE}
    ]
    return any(
        not int(details.attributes(flow.names[op]).get("shrink_axis_mask", 0)) & 1 for op in cuts
    )


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


class Part(NamedTuple):
    """A part of a tensor between constant indices.

    Attributes:
        op: the name of the slice op.
        tensor: the tensor that it is cut from.
        bounds: for each axis the first index, and the index after the last one. Axes after them
            are not cut.
    """

    op: str
    tensor: str
    bounds: tuple[tuple[float, float], ...]

    def overlaps(self, other: Part) -> bool:
        """Whether two parts of one tensor have different rows, half of which or more are common.

        Parts with the same rows are cut along another axis, such as features or time. A few common
        rows may be intended, such as a frame before the first.
        """
        axes = list(zip_longest(self.bounds, other.bounds, fillvalue=_WHOLE_AXIS))
        if not axes or axes[0][0] == axes[0][1]:
            return False
        common = [min(one[1], two[1]) - max(one[0], two[0]) for one, two in axes]
        fewest = min(end - begin for begin, end in axes[0])
        return min(common) > 0 and 2 * common[0] >= fewest


_WHOLE_AXIS = (0, math.inf)


def part_of(analysis: TowerAnalysis, tensor: str) -> Part | None:
    """Return the part that a slice yields, also in another shape or dtype.

    None for other tensors, for computed indices, and for slices that skip elements.
    """
    op, details = analysis.placement.ops[producer_of(tensor)], analysis.placement.details
    while op.type in RESHAPES | IDENTITIES | {CAST}:
        op = analysis.placement.ops[producer_of(op.inputs[0])]
    indices = [value[2:] for name in op.inputs[1:] if (value := details.value(producer_of(name)))]
    if op.type == SLICE and len(indices) == 2:
        return Part(
            op.name,
            op.inputs[0],
            tuple(
                (begin, math.inf if size < 0 else begin + size)
                for begin, size in zip(*indices, strict=True)
            ),
        )
    if op.type != INDEXED_SLICE or len(indices) != 3:
        return None
    masks = {key: int(details.attributes(op.name).get(f"{key}_mask", 0)) for key in _MASKS}
    bounds: list[tuple[float, float]] = []
    for axis, (begin, end, stride) in enumerate(zip(*indices, strict=True)):
        first = 0 if masks["begin"] >> axis & 1 else begin
        last = math.inf if masks["end"] >> axis & 1 else end
        if masks["shrink_axis"] >> axis & 1:
            last = first + 1
        if stride != 1 or first < 0 or last < 0:  # every n-th row, or indices from the end
            return None
        bounds.append((first, last))
    if masks["ellipsis"] or masks["new_axis"]:
        return None
    return Part(op.name, op.inputs[0], tuple(bounds))


_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


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


def _rows_fed(analysis: TowerAnalysis) -> int | None:
    """Return the number of rows in a batch: the first dimension of all placeholders; else None.

    Vectors count only if no placeholder has more dimensions. A single vector is not enough.
    """
    flow, details = analysis.flow, analysis.placement.details
    if flow.having((EXAMPLE_SOURCES - PLACEHOLDERS).__contains__):
        return None
    fed = (details.outputs(flow.names[op]) for op in flow.having(PLACEHOLDERS.__contains__))
    shapes = [outputs[0].shape for outputs in fed if outputs and outputs[0].shape]
    tables = [shape for shape in shapes if shape and len(shape) > 1]
    lengths = {shape[0] for shape in tables or shapes if shape}
    return lengths.pop() if len(lengths) == 1 and (tables or len(shapes) > 1) else None


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
