"""Towers: the copies of a model, found by the requested devices and by data flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.analysis.backward import Backward
from placement_checks.analysis.data_flow import DataFlow
from placement_checks.analysis.updates import Updates
from placement_checks.core.devices import Device
from placement_checks.core.op_types import NOT_A_READ, PASSES_READ, is_update
from placement_checks.core.placement import Placement, producer_of


class GpuReads(NamedTuple):
    """What one GPU computes with: the variables it reads, and the first op that reads each."""

    device: Device
    reads: Mapping[str, str]


class Tower(NamedTuple):
    """One copy of the model: a GPU, or several that hold its parts."""

    devices: tuple[Device, ...]
    reads: Mapping[str, str]

    def __str__(self) -> str:
        return " and ".join(device.short for device in self.devices)


class ReadsByGpu:
    """The GPUs that compute with variables, and which of them hold parts of one model.

    An op counts for the GPU that it works for, its home.

    In one model, what is computed with a variable on one GPU is used by what is combined with a
    variable on the other, forwards or in its gradients; towers use each other's results only
    after their gradients are computed. Variables that all GPUs read prove nothing. Nor do
    replicas of a strategy hold parts of one model, which may tell each other what they compute:
    to normalise by the rows of all, or to set the rows of one against those of the others.

    What is computed with a variable on the host, such as a lookup in a table, or once for several
    GPUs, such as a normalised kernel, is read by the GPUs that compute with the result. What only
    updates compute with, such as a velocity, is not read.

    Attributes:
        flow: the edges of the graph.
        readers: the ops that compute with the value of a variable, by its name.
        gpus: what each GPU reads, in the order of their names.
    """

    def __init__(
        self,
        placement: Placement,
        flow: DataFlow,
        backward: Backward,
        updates: Updates,
        homes: Sequence[Device | None],
    ) -> None:
        self.flow = flow
        self._ops = placement.by_number
        self._homes = homes
        self._strategy = placement.strategy
        self._backward = backward.ops
        self._updates = updates
        ends = [*backward.numbers(), *_named(placement, flow)]
        self._model = flow.ancestors(ends) if ends else None
        self.readers = {
            variable.name: self._readers(flow.number[variable.name])
            for variable in placement.variables
        }
        self._add_hosted()
        reads: dict[Device, dict[str, str]] = defaultdict(dict)
        for variable, readers in self.readers.items():
            for reader in readers:
                home = homes[reader]
                if home is not None:
                    reads[home].setdefault(variable, self._ops[reader].name)
        self.gpus = [GpuReads(device, reads[device]) for device in sorted(reads)]
        self.joined_gpus = self._joined_gpus()

    def _readers(self, variable: int) -> list[int]:
        """The ops that compute with a variable's value; copies of the value are followed.

        Assignments, optimiser updates, savers and the like do not compute with it.
        """
        flow = self.flow
        seen = {variable}
        todo = [variable]
        found = []
        while todo:
            for op in flow.consumers[todo.pop()]:
                if op in seen:
                    continue
                seen.add(op)
                if flow.types[op] in PASSES_READ:
                    todo.append(op)
                elif (
                    _computes(flow.types[op])
                    and op not in flow.calls  # its body does
                    and not self._only_updates(op)
                ):
                    found.append(op)
        return sorted(found)

    def in_model(self, op: int) -> bool:
        """Whether a reader is part of the model: on a GPU, or on the way to a loss."""
        return self._model is None or bool(self._model[op]) or self._homes[op] is not None

    def in_loss(self, op: int) -> bool:
        """Whether its value reaches a loss or a gradient; any may where none is known."""
        return self._model is None or bool(self._model[op])

    def _only_updates(self, op: int) -> bool:
        """Whether its value goes into updates of variables, and not into the model."""
        return self._model is not None and not self._model[op] and bool(self.to_updates[op])

    @cached_property
    def to_updates(self) -> bytearray:
        """For each op whether an update of the step takes its value, or what is made of it."""
        values = (
            value
            for updates in self._updates.by_variable.values()
            for update in updates
            for value in update.values
        )
        return self.flow.ancestors(values)

    def _add_hosted(self) -> None:
        """Add the first ops of GPUs that compute with what was made of a variable for them."""
        variables = list(self.readers)
        reached: dict[int, int] = {}
        for number, readers in enumerate(self.readers.values()):
            for op in readers:
                if self._is_hosted(op):
                    reached[op] = reached.get(op, 0) | 1 << number
        if not reached:
            return
        for op, producers in enumerate(self.flow.inputs):
            mask = 0
            for producer in producers:
                mask |= reached.get(producer, 0)
            if not mask or self._backward[op]:
                continue
            if self._homes[op] is None:
                reached[op] = reached.get(op, 0) | mask
                continue
            for number in _bits(mask):
                readers = self.readers[variables[number]]
                if op not in readers:
                    readers.append(op)

    def _is_hosted(self, op: int) -> bool:
        in_model = self._model is None or self._model[op]
        return bool(in_model and not self._backward[op] and self._homes[op] is None)

    @cached_property
    def joined_forward(self) -> set[frozenset[int]]:
        """The pairs of GPUs of which one uses in its forward pass what the other computes.

        Copies of a model whose outputs go into one loss are joined by their gradients alone.
        """
        return self._joined_gpus(forward=True)

    def _joined_gpus(self, *, forward: bool = False) -> set[frozenset[int]]:
        """The pairs of GPUs, by number, of which one uses what the other computes with its own."""
        if len(self.gpus) < 2:
            return set()
        shared = set.intersection(*(set(gpu.reads) for gpu in self.gpus))
        numbers = {gpu.device: number for number, gpu in enumerate(self.gpus)}
        own = [0] * len(self._ops)
        readers_apart: list[tuple[int, int]] = []
        for variable, readers in self.readers.items():
            if variable in shared:
                continue
            for reader in readers:
                home = self._homes[reader]
                if home is not None and not (forward and self._backward[reader]):
                    number = numbers[home]
                    own[reader] |= 1 << number
                    readers_apart.append((reader, number))
        if not readers_apart:
            return set()
        masks = self.flow.masks(own)
        pairs = {
            frozenset((number, other))
            for reader, number in readers_apart
            for other in _bits(masks[reader] & ~(1 << number))
        }
        return {pair for pair in pairs if not all(map(self._is_replica, pair))}

    def _is_replica(self, number: int) -> bool:
        """Whether a GPU has a replica of the program's strategy."""
        replicas = () if self._strategy is None else self._strategy.replicas
        return any(self.gpus[number].device.matches(replica) for replica in replicas)

    def models(self, numbers: Sequence[int]) -> list[list[int]]:
        """The GPUs of these numbers, those that hold parts of one model together."""
        found: dict[int, list[int]] = {number: [number] for number in numbers}
        for number, other in map(tuple, self.joined_gpus):
            if number in found and other in found and found[number] is not found[other]:
                joined = [*found[number], *found[other]]
                found.update(dict.fromkeys(joined, joined))
        return sorted({id(model): sorted(model) for model in found.values()}.values())

    def towers(self) -> list[Tower]:
        """The copies of the model, in the order of their first GPU."""
        return [
            Tower(
                tuple(self.gpus[number].device for number in model),
                {
                    variable: reader
                    for number in reversed(model)
                    for variable, reader in self.gpus[number].reads.items()
                },
            )
            for model in self.models(range(len(self.gpus)))
        ]


def _bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _named(placement: Placement, flow: DataFlow) -> Iterator[int]:
    """The losses that the program names."""
    for name in (*placement.step.objectives, *placement.step.losses):
        if producer_of(name) in flow.number:
            yield flow.number[producer_of(name)]


def _computes(kind: str) -> bool:
    return kind not in NOT_A_READ and not is_update(kind)
