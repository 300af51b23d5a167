"""Transfers: what one step copies from device to device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.devices import Device
from placement_checks.core.op_types import CUTS, PARTITIONS
from placement_checks.core.placement import Op, Placement, producer_of

_HANDLES = frozenset({"resource"})
_CUTS = CUTS.keys() | PARTITIONS


class Copied(NamedTuple):
    """One tensor that a step copies to a device, once.

    Attributes:
        tensor: ``op:0``.
        source: the device it comes from.
        to: the device it goes to.
        bytes: its size; None where it is unknown.
        taker: the first op there that takes it.
    """

    tensor: str
    source: Device
    to: Device
    bytes: int | None
    taker: str


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
        return (
            f"{self.source.short} -> {self.to.short}: {self.bytes:,} bytes in "
            f"{copies_text(self.copies)}{more}"
        )


def copies_text(number: int) -> str:
    return f"{number:,} {'copy' if number == 1 else 'copies'}"


def copies(placement: Placement, rows: int | None = None) -> list[Copied]:
    """The copies of one step: every tensor that an op takes from another device.

    The same tensor is copied to the same device once. Loops count as one iteration, and both
    branches of a condition are counted. An unknown first dimension is that of the batch, or of
    its part in a tower.

    Args:
        placement: with the devices that a placer assigned.
        rows: the rows of the global batch.
    """
    analysis = analyse(placement)
    size_of = cache(partial(_size, analysis, rows))
    by_tensor: dict[tuple[str, Device], Copied] = {}
    for op, here in _across_devices(analysis, placement.by_number):
        for source in op.inputs:
            producer = placement.ops.get(source) or placement.ops.get(producer_of(source))
            if producer is None or producer.assigned is None or source[0] == "^":
                continue
            if producer.assigned is here:
                continue
            tensor = source if ":" in source else f"{source}:0"
            if (tensor, here) not in by_tensor and (size := size_of(tensor)) != 0:
                by_tensor[tensor, here] = Copied(tensor, producer.assigned, here, size, op.name)
    return list(by_tensor.values())


def _across_devices(analysis: TowerAnalysis, ops: Sequence[Op]) -> Iterator[tuple[Op, Device]]:
    """The ops of a step, and their devices, that wait for an op on another device."""
    devices = [op.assigned for op in ops]
    for number, sources in enumerate(analysis.flow.all_inputs):
        here = devices[number]
        if here is None or not analysis.updates.steps[number]:
            continue
        for source in sources:
            if devices[source] is not here:
                yield ops[number], here
                break


def transfers(all_copies: Iterable[Copied]) -> list[Transfer]:
    """The copies, added up for each pair of devices, the largest sum first."""
    return _by_pair((copy.source, copy.to, copy) for copy in all_copies)


def network_transfers(all_copies: Iterable[Copied]) -> list[Transfer]:
    """The copies that go over the network, added up for each pair of tasks."""
    return _by_pair(
        (source, to, copy)
        for copy in all_copies
        for source, to in [(copy.source.task_device, copy.to.task_device)]
        if source != to
    )


def _by_pair(by_pair: Iterable[tuple[Device, Device, Copied]]) -> list[Transfer]:
    pairs: dict[tuple[Device, Device], list[Copied]] = defaultdict(list)
    for source, to, copy in by_pair:
        pairs[source, to].append(copy)
    sums = [
        Transfer(
            source,
            to,
            len(copied),
            sum(copy.bytes or 0 for copy in copied),
            sum(copy.bytes is None for copy in copied),
        )
        for (source, to), copied in pairs.items()
    ]
    return sorted(sums, key=lambda sent: (-sent.bytes, -sent.copies, sent.source, sent.to))


def _size(analysis: TowerAnalysis, rows: int | None, tensor: str) -> int | None:
    """Bytes of a tensor; 0 for a handle, which is not data, None where it is not known."""
    name, _, number = tensor.partition(":")
    outputs = analysis.placement.details.outputs(name)
    if int(number) >= len(outputs):
        return None
    output = outputs[int(number)]
    if output.dtype in _HANDLES:
        return 0
    if output.shape and output.shape[0] is None and rows is not None:
        output = output._replace(shape=(_rows(analysis, tensor, rows), *output.shape[1:]))
    return output.bytes


def _rows(analysis: TowerAnalysis, tensor: str, rows: int) -> int:
    """The rows of a tensor whose first dimension is that of the batch."""
    towers = len(analysis.towers)
    if towers < 2:
        return rows
    op = analysis.flow.number[producer_of(tensor)]
    behind = (analysis.towers_behind[op] & analysis.all_towers).bit_count()
    of_one_tower = behind == 1 or (behind == 0 and analysis.placement.cached(_is_part)[op])
    return math.ceil(rows / towers) if of_one_tower else rows


def _is_part(placement: Placement) -> Sequence[int]:
    """For each op whether its value comes from a part of a batch: sliced, or fed as one."""
    flow = analyse(placement).flow
    inputs = placement.step.inputs
    fed = {producer_of(name) for names in inputs for name in names} if len(inputs) > 1 else set()
    ops = zip(flow.names, flow.types, strict=True)
    return flow.masks([int(kind in _CUTS or name in fed) for name, kind in ops])
