"""Examples: what a tower computes with beside weights; they are fed, read, drawn or cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.analysis.data_flow import DataFlow
from placement_checks.core.op_types import EXAMPLE_SOURCES, PLACEHOLDERS, RANDOM
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement


def from_examples(placement: Placement, flow: DataFlow) -> Sequence[int]:
    """For each op whether its value depends on examples, and so not on weights alone."""
    own = [0] * len(flow.names)
    for op in _sources(placement, flow):
        own[op] = 1
    return flow.masks(own)


def _sources(placement: Placement, flow: DataFlow) -> Iterator[int]:
    for op in flow.having((EXAMPLE_SOURCES | RANDOM).__contains__):
        if flow.types[op] not in PLACEHOLDERS or not _is_scalar(placement, flow.names[op]):
            yield op
    for name in cached_inputs(placement):
        yield flow.number[name]


def _is_scalar(placement: Placement, op: str) -> bool:
    """Whether one number is fed, such as a learning rate: that is no example."""
    outputs = placement.details.outputs(op)
    return bool(outputs) and outputs[0].shape == ()


def cached_inputs(placement: Placement) -> frozenset[str]:
    """The variables that are neither saved nor trained and no scalars: they hold examples.

    The dataset in memory, or the batches that were read ahead. Of what a strategy keeps for each
    replica the first copy is collected.
    """
    collected = placement.collected
    saved = collected.get(TRAINABLE, frozenset()) | collected.get(GLOBAL, frozenset())
    if saved and placement.strategy is not None:
        saved |= placement.strategy.copies.keys()
    return frozenset(
        variable.name
        for variable in placement.variables
        if saved and variable.name not in saved and variable.shape
    )
