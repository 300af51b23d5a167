"""The collectives of a step: which run together, and which wait for others that never come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from placement_checks.core.op_types import COLLECTIVE_GATHER, COLLECTIVE_REDUCE
from placement_checks.core.placement import Placement, Tensor, producer_of

_KEYED = {COLLECTIVE_REDUCE, COLLECTIVE_GATHER}  # the next inputs are the size and two keys


class Meeting(NamedTuple):
    """Collectives that wait for each other.

    Attributes:
        size: how many there must be.
        members: the ops, in the order of building.
        values: what each of them brings.
    """

    size: int
    members: Sequence[str]
    values: Sequence[Tensor | None]

    @property
    def is_complete(self) -> bool:
        """Whether all have come, and bring values of one shape."""
        return len(self.members) == self.size and len(set(self.values)) == 1


def meetings(placement: Placement) -> Sequence[Meeting]:
    """The collectives of a graph whose sizes and keys are known, those that meet together."""
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for op in placement.ops.values():
        if op.type in _KEYED:
            keys = [placement.details.value(producer_of(source)) for source in op.inputs[1:4]]
            if None not in keys:
                groups[op.type, *((key or ())[-1] for key in keys)].append(op.name)
    return [
        Meeting(size, members, [_given(placement, name) for name in members])
        for (_, size, *_), members in groups.items()
    ]


def _given(placement: Placement, collective: str) -> Tensor | None:
    """What a collective is given; None where that is not known."""
    producer, _, index = placement.ops[collective].inputs[0].partition(":")
    outputs = placement.details.outputs(producer)
    return outputs[int(index or 0)] if outputs else None
