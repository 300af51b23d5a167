"""Transfers: the tensors that one step copies between devices, by layer and by phase."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Literal, NamedTuple, get_args

from placement_checks.analysis.addresses import Part, addresses
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.core.devices import Device
from placement_checks.core.ids import TowerIndex
from placement_checks.core.op_types import CUTS, PARTITIONS
from placement_checks.core.placement import Placement, producer_of, with_output

RESOURCE = "resource"  # the dtype of handles
_CUTS = CUTS.keys() | PARTITIONS


class CopiedTensor(NamedTuple):
    """A tensor that a step copies to a device once.

    Attributes:
        tensor: the name of the tensor, such as ``op:0``.
        source: the device that the tensor comes from.
        to: the device that the tensor goes to.
        bytes: the size of the tensor; None if it is unknown.
        taker: the name of the first op on ``to`` that takes the tensor.
    """

    tensor: str
    source: Device
    to: Device
    bytes: int | None
    taker: str


class Transfer(NamedTuple):
    """All tensors that a step copies from one device to another, or from one task to another.

    Attributes:
        source, to: the devices; without type and index if they are tasks.
        copies: the number of tensors.
        bytes: the size of all tensors of known size.
        unknown: the number of tensors of unknown size.
    """

    source: Device
    to: Device
    copies: int
    bytes: int
    unknown: int

    def __str__(self) -> str:
        size = f"{self.bytes:,} bytes in {copies_text(self.copies)}"
        if self.unknown == self.copies:
            size = f"{copies_text(self.copies)} of unknown size"
        elif self.unknown:
            size = f"at least {size}, {self.unknown} of unknown size"
        return f"{self.source.short} -> {self.to.short}: {size}"


def copies_text(number: int) -> str:
    """Return ``1 copy``, ``2 copies``, ``1,000 copies``."""
    return f"{number:,} {'copy' if number == 1 else 'copies'}"


def copies(placement: Placement, rows: int | None = None) -> list[CopiedTensor]:
    """Find every tensor that an op of a step takes from another device.

    A tensor is copied to a device once. Loops count as one iteration, and both branches of a
    conditional count. An unknown first dimension is assumed to be the number of rows of the batch,
    or of one tower.

    Args:
        placement: a program with assigned devices.
        rows: the number of rows of the global batch; None if it is unknown.
    """
    analysis = analyze(placement)
    size_of = cache(partial(_size, analysis, rows))
    by_tensor: dict[tuple[str, Device], CopiedTensor] = {}
    devices = [op.assigned for op in placement.by_number]
    for op, runs, sources in zip(
        placement.by_number, analysis.updates.in_step, analysis.flow.all_inputs, strict=True
    ):
        here = op.assigned
        if not runs or here is None or all(devices[source] is here for source in sources):
            continue
        for source in op.inputs:
            producer = placement.ops.get(source) or placement.ops.get(producer_of(source))
            there = None if producer is None or source[0] == "^" else producer.assigned
            if there is None or there is here:
                continue
            tensor = with_output(source)
            if (tensor, here) not in by_tensor and (size := size_of(tensor)) != 0:
                by_tensor[tensor, here] = CopiedTensor(tensor, there, here, size, op.name)
    return list(by_tensor.values())


def transfers(all_copies: Iterable[CopiedTensor]) -> list[Transfer]:
    """Add up the copies of each pair of devices, the largest transfer first."""
    return _add_up(((copy.source, copy.to), copy) for copy in all_copies)


def network_transfers(all_copies: Iterable[CopiedTensor]) -> list[Transfer]:
    """Add up the copies of each pair of tasks, the largest transfer first."""
    pairs = (((copy.source.task_device, copy.to.task_device), copy) for copy in all_copies)
    return _add_up((pair, copy) for pair, copy in pairs if pair[0] != pair[1])


def _add_up(all_copies: Iterable[tuple[tuple[Device, Device], CopiedTensor]]) -> list[Transfer]:
    by_pair: dict[tuple[Device, Device], list[CopiedTensor]] = defaultdict(list)
    for pair, copy in all_copies:
        by_pair[pair].append(copy)
    sums = [Transfer(*pair, *TransferTotal.from_copies(each)) for pair, each in by_pair.items()]
    return sorted(sums, key=lambda sent: (-sent.bytes, -sent.copies, sent.source, sent.to))


def _size(analysis: TowerAnalysis, rows: int | None, tensor: str) -> int | None:
    """Return the bytes of a tensor; 0 for a handle, None if the size is unknown."""
    output = analysis.tensor(tensor)
    if output is None:
        return None
    if output.dtype == RESOURCE:
        return 0
    if output.shape and output.shape[0] is None and rows is not None:
        output = output._replace(shape=(_rows(analysis, tensor, rows), *output.shape[1:]))
    return output.bytes


def _rows(analysis: TowerAnalysis, tensor: str, rows: int) -> int:
    """Return the number of rows of a tensor: the rows of the batch, or of one tower."""
    towers = len(analysis.towers)
    if towers < 2:
        return rows
    op = analysis.flow.op_of(tensor)
    behind = analysis.towers_of(op).bit_count()
    of_one_tower = behind == 1 or (behind == 0 and analysis.placement.cached(_is_part)[op])
    return math.ceil(rows / towers) if of_one_tower else rows


def _is_part(placement: Placement) -> Sequence[int]:
    """Return for each op whether its value depends on a slice of a batch, or one tower's feed."""
    flow = analyze(placement).flow
    inputs = placement.step.inputs
    fed = {producer_of(name) for names in inputs for name in names} if len(inputs) > 1 else set()
    ops = zip(flow.names, flow.types, strict=True)
    return flow.propagate([int(kind in _CUTS or name in fed) for name, kind in ops])


Phase = Literal["input", "forward", "backward", "average", "update", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)
_PHASES: Mapping[Part, Phase] = {
    "input": "input",
    "shared input": "input",
    "reads": "forward",  # the forward pass uses the value first
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
    """A copied tensor with its phase and layer.

    Attributes:
        copied: the copied tensor.
        phase: the phase of the first op that takes the tensor.
        variable: the variable of the layer that sends the tensor, or of the update that takes the
            tensor; ``""`` if there is none.
        tower: the tower that takes the tensor, else the tower that sends it, or None.
    """

    copied: CopiedTensor
    phase: Phase
    variable: str
    tower: TowerIndex | None

    @property
    def layer(self) -> str:
        """The scope of the variable, or its name if it has no scope; ``""`` without a variable."""
        return self.variable.rpartition("/")[0] or self.variable


class TransferTotal(NamedTuple):
    """The sum of several copies.

    Attributes:
        copies: the number of tensors.
        bytes: the size of all tensors of known size.
        unknown: the number of tensors of unknown size.
    """

    copies: int = 0
    bytes: int = 0
    unknown: int = 0

    @staticmethod
    def from_copies(copies: Iterable[CopiedTensor]) -> TransferTotal:
        """Add up copies."""
        sizes = [copied.bytes for copied in copies]
        return TransferTotal(len(sizes), sum(filter(None, sizes)), sizes.count(None))


class LayerTraffic(NamedTuple):
    """The sums of the copies of one layer.

    Attributes:
        layer: the name of the layer; ``""`` for copies without a layer.
        total: the sum of all copies.
        phases: the sum of the copies of each phase with copies.
        largest: the largest copy.
    """

    layer: str
    total: TransferTotal
    phases: Mapping[Phase, TransferTotal]
    largest: CopiedTensor


def sent_tensors(placement: Placement, copied: Sequence[CopiedTensor]) -> list[SentTensor]:
    """Return the copies of a step with their phases and layers."""
    flow, found = analyze(placement).flow, addresses(placement)
    sent = []
    for copy in copied:
        source, taker = flow.op_of(copy.tensor), flow.number[copy.taker]
        part = found.parts[taker]
        first, second = (taker, source) if part in _OF_ONE_VARIABLE else (source, taker)
        layer = found.layers[second if found.layers[first] is None else first]
        tower = found.towers[source if found.towers[taker] is None else taker]
        variable = "" if layer is None else flow.names[layer]
        sent.append(SentTensor(copy, _PHASES.get(part, "other"), variable, tower))
    return sent


def by_layer(all_sent: Iterable[SentTensor]) -> list[LayerTraffic]:
    """Add up the copies of each layer and phase, the layer with the most bytes first."""
    groups: dict[str, dict[Phase, list[CopiedTensor]]] = defaultdict(lambda: defaultdict(list))
    for each in all_sent:
        groups[each.layer][each.phase].append(each.copied)
    layers = []
    for layer, phases in groups.items():
        copies = [copied for each in phases.values() for copied in each]
        sums = {
            phase: TransferTotal.from_copies(phases[phase]) for phase in PHASES if phase in phases
        }
        largest = max(copies, key=lambda copied: copied.bytes or 0)
        layers.append(LayerTraffic(layer, TransferTotal.from_copies(copies), sums, largest))
    return sorted(layers, key=lambda each: (-each.total.bytes, -each.total.copies, each.layer))
