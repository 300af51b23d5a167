"""Transfers: what one step copies from device to device.

Which layer sends what, and in which phase of a step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Literal, NamedTuple, get_args

from placement_checks.analysis.addresses import Part, addresses
from placement_checks.analysis.graph.layers import NONE
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.core.devices import Device
from placement_checks.core.op_types import CUTS, PARTITIONS
from placement_checks.core.placement import Op, Placement, producer_of

_HANDLES = frozenset({"resource"})
_CUTS = CUTS.keys() | PARTITIONS


class CopiedTensor(NamedTuple):
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


def copies(placement: Placement, rows: int | None = None) -> list[CopiedTensor]:
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
    by_tensor: dict[tuple[str, Device], CopiedTensor] = {}
    for op, here in _across_devices(analysis, placement.by_number):
        for source in op.inputs:
            producer = placement.ops.get(source) or placement.ops.get(producer_of(source))
            if producer is None or producer.assigned is None or source[0] == "^":
                continue
            if producer.assigned is here:
                continue
            tensor = source if ":" in source else f"{source}:0"
            if (tensor, here) not in by_tensor and (size := size_of(tensor)) != 0:
                by_tensor[tensor, here] = CopiedTensor(
                    tensor, producer.assigned, here, size, op.name
                )
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


def transfers(all_copies: Iterable[CopiedTensor]) -> list[Transfer]:
    """The copies, added up for each pair of devices, the largest sum first."""
    return _by_pair((copy.source, copy.to, copy) for copy in all_copies)


def network_transfers(all_copies: Iterable[CopiedTensor]) -> list[Transfer]:
    """The copies that go over the network, added up for each pair of tasks."""
    return _by_pair(
        (source, to, copy)
        for copy in all_copies
        for source, to in [(copy.source.task_device, copy.to.task_device)]
        if source != to
    )


def _by_pair(by_pair: Iterable[tuple[Device, Device, CopiedTensor]]) -> list[Transfer]:
    pairs: dict[tuple[Device, Device], list[CopiedTensor]] = defaultdict(list)
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


Phase = Literal["input", "forward", "backward", "average", "update", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)
# A variable that is read elsewhere is read for the forward pass first.
_PHASES: Mapping[Part, Phase] = {
    "input": "input",
    "shared input": "input",
    "reads": "forward",
    "forward": "forward",
    "shared forward": "forward",
    "backward": "backward",
    "shared backward": "backward",
    "average": "average",
    "update": "update",
    "apply": "update",
}
_OF_ONE_VARIABLE: frozenset[Part] = frozenset({"average", "update", "apply"})


class SentTensor(NamedTuple):
    """A copy, and what it is for.

    Attributes:
        copied: what is copied to where.
        phase: of the op that takes it first.
        variable: whose layer sends it, or in whose update it ends; ``""`` where there is none.
        tower: the number of the tower that takes or else sends it, or -1.
    """

    copied: CopiedTensor
    phase: Phase
    variable: str
    tower: int

    @property
    def layer(self) -> str:
        """The scope of the variable, or its name where it has none; ``""`` without one."""
        return self.variable.rpartition("/")[0] or self.variable


class ReducedTensor(NamedTuple):
    """What several copies are together; ``unknown`` of them have a size that is not known."""

    copies: int = 0
    bytes: int = 0
    unknown: int = 0

    @staticmethod
    def of(several: Iterable[CopiedTensor]) -> ReducedTensor:
        sizes = [copied.bytes for copied in several]
        return ReducedTensor(len(sizes), sum(filter(None, sizes)), sizes.count(None))


class LayerTraffic(NamedTuple):
    """All that the copies of one layer come to.

    Attributes:
        layer: its name; ``""`` for what is of no layer.
        total: all of them.
        phases: those of each phase that has some.
        largest: the largest of them.
    """

    layer: str
    total: ReducedTensor
    phases: Mapping[Phase, ReducedTensor]
    largest: CopiedTensor


def sent_tensors(placement: Placement, copied: Sequence[CopiedTensor]) -> list[SentTensor]:
    """The copies of a step with their phases and layers."""
    number, found = analyse(placement).flow.number, addresses(placement)
    names = analyse(placement).flow.names
    told = []
    for copy in copied:
        source, taker = number[producer_of(copy.tensor)], number[copy.taker]
        part = found.parts[taker]
        first, second = (taker, source) if part in _OF_ONE_VARIABLE else (source, taker)
        layer = found.layers[second if found.layers[first] == NONE else first]
        tower = found.towers[source if found.towers[taker] == NONE else taker]
        variable = "" if layer == NONE else names[layer]
        told.append(SentTensor(copy, _PHASES.get(part, "other"), variable, tower))
    return told


def by_layer(all_sent: Iterable[SentTensor]) -> list[LayerTraffic]:
    """The copies, added up for each layer and phase; the layers that send most come first."""
    groups: dict[str, dict[Phase, list[CopiedTensor]]] = defaultdict(lambda: defaultdict(list))
    for each in all_sent:
        groups[each.layer][each.phase].append(each.copied)
    layers = []
    for layer, phases in groups.items():
        copies = [copied for each in phases.values() for copied in each]
        sums = {phase: ReducedTensor.of(phases[phase]) for phase in PHASES if phase in phases}
        largest = max(copies, key=lambda copied: copied.bytes or 0)
        layers.append(LayerTraffic(layer, ReducedTensor.of(copies), sums, largest))
    return sorted(layers, key=lambda each: (-each.total.bytes, -each.total.copies, each.layer))
