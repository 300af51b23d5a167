"""Transfers: what one step copies from device to device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.devices import Device
from placement_checks.core.op_types import CUTS, PARTITIONS
from placement_checks.core.placement import Placement, producer_of

_HANDLES = frozenset({"resource"})
_CUTS = CUTS.keys() | PARTITIONS


class Copied(NamedTuple):
    """One tensor that a step copies to a device, once; ``bytes`` is None where it is unknown."""

    tensor: str
    source: Device
    to: Device
    bytes: int | None


class Transfer(NamedTuple):
    """All that a step copies from one device to another, or from one task to another.

    Attributes:
        source, to: the devices; their types and indices are left out where they are tasks.
        copies: how many tensors.
        bytes: their size, shape times dtype, as far as it is known.
        unknown: how many of them have a size that is not known.
    """

    source: Device
    to: Device
    copies: int
    bytes: int
    unknown: int

    def __str__(self) -> str:
        more = f", {self.unknown} of unknown size" if self.unknown else ""
        plural = "copies" if self.copies > 1 else "copy"
        return (
            f"{self.source.short} -> {self.to.short}: {self.bytes:,} bytes in {self.copies:,} "
            f"{plural}{more}"
        )


def copies(placement: Placement, rows: int | None = None) -> list[Copied]:
    """The copies of one step: every tensor that an op takes from another device.

    The same tensor is copied to the same device once. Loops count as one turn, of branches both
    are counted. An unknown first dimension is that of the batch: a tower's is its part.

    Args:
        placement: one that a placer has answered for.
        rows: the rows of the global batch.
    """
    known = analyse(placement)
    found: dict[tuple[str, Device], Copied] = {}
    for here, op in enumerate(known.ops):
        if op.assigned is None or not known.updates.steps[here]:
            continue
        for each in op.inputs:
            producer = placement.ops.get(each) or placement.ops.get(producer_of(each))
            if producer is None or producer.assigned is None or each[0] == "^":
                continue
            if producer.assigned is op.assigned or producer.assigned == op.assigned:
                continue
            tensor = each if ":" in each else f"{each}:0"
            if (tensor, op.assigned) not in found:
                size = _size(known, tensor, rows)
                if size != 0:
                    copy = Copied(tensor, producer.assigned, op.assigned, size)
                    found[tensor, op.assigned] = copy
    return list(found.values())


def transfers(all_copies: Iterable[Copied]) -> list[Transfer]:
    """The copies, added up for each pair of devices, the largest sum first."""
    return _sums((copy.source, copy.to, copy) for copy in all_copies)


def network_transfers(all_copies: Iterable[Copied]) -> list[Transfer]:
    """The copies that go over the network, added up for each pair of tasks."""
    return _sums(
        (source, to, copy)
        for copy in all_copies
        for source, to in [(copy.source.task_device, copy.to.task_device)]
        if source != to
    )


def _sums(apart: Iterable[tuple[Device, Device, Copied]]) -> list[Transfer]:
    pairs: dict[tuple[Device, Device], list[Copied]] = defaultdict(list)
    for source, to, copy in apart:
        pairs[source, to].append(copy)
    sums = [
        Transfer(
            source,
            to,
            len(each),
            sum(copy.bytes or 0 for copy in each),
            sum(copy.bytes is None for copy in each),
        )
        for (source, to), each in pairs.items()
    ]
    return sorted(sums, key=lambda each: (-each.bytes, -each.copies, each.source, each.to))


def _size(known: TowerAnalysis, tensor: str, rows: int | None) -> int | None:
    """Bytes of a tensor; 0 for a handle, which is no data, None where it is not known."""
    name, _, number = tensor.partition(":")
    outputs = known.placement.details.outputs(name)
    if int(number) >= len(outputs):
        return None
    output = outputs[int(number)]
    if output.dtype in _HANDLES:
        return 0
    if output.shape and output.shape[0] is None and rows is not None:
        output = output._replace(shape=(_rows(known, tensor, rows), *output.shape[1:]))
    return output.bytes


def _rows(known: TowerAnalysis, tensor: str, rows: int) -> int:
    """The rows of a tensor whose first dimension is that of the batch."""
    towers = len(known.towers)
    if towers < 2:
        return rows
    op = known.flow.number[producer_of(tensor)]
    met = (known.towers_behind[op] & known.all_towers).bit_count()
    of_one = met == 1 or (met == 0 and known.placement.cached(_cut)[op])
    return math.ceil(rows / towers) if of_one else rows


def _cut(placement: Placement) -> Sequence[int]:
    """For each op whether its value comes from a part of a batch: cut off, or fed as one."""
    flow = analyse(placement).flow
    inputs = placement.step.inputs
    fed = {producer_of(name) for each in inputs for name in each} if len(inputs) > 1 else set()
    parts = zip(flow.names, flow.types, strict=True)
    return flow.masks([int(kind in _CUTS or name in fed) for name, kind in parts])
