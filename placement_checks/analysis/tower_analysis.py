"""The analysis of one placement: its towers, and what their ops depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.analysis.backward import Backward
from placement_checks.analysis.data_flow import DataFlow
from placement_checks.analysis.losses import Losses, losses_of
from placement_checks.analysis.towers import ReadsByGpu, Tower, tower_device
from placement_checks.analysis.updates import Updates
from placement_checks.core.op_types import ADDS, EXAMPLE_SOURCES
from placement_checks.core.placement import Placement
from placement_checks.util.text import joined


class MixedLoss(NamedTuple):
    """A tower's loss and the way back from it to an op of another tower."""

    tower: int
    path: Sequence[int]


class TowerAnalysis:
    """The towers of one placement; `Placement.cached` keeps it, so that rules share it.

    Attributes:
        flow: the edges of the graph.
        reads_by_gpu: the GPUs that compute with variables.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.flow = DataFlow(placement)
        self._ops = placement.by_number

    def prepare(self) -> None:
        """Find out ahead what most rules ask for."""
        for name in ("towers_behind", "losses", "examples"):
            getattr(self, name)

    @cached_property
    def reads_by_gpu(self) -> ReadsByGpu:
        return ReadsByGpu(self.placement, self.flow, self.backward, self.updates)

    @cached_property
    def towers(self) -> Sequence[Tower]:
        """The copies of the model that are trained; all of them where none is.

        A copy that only evaluates is part of no step, and no gradients are taken of it.
        """
        towers = self.reads_by_gpu.towers()
        trained = self.flow.ancestors(self.backward.numbers())
        if not any(trained):
            return towers
        training = {
            tower_device(self._ops[op].requested)
            for readers in self.reads_by_gpu.readers.values()
            for op in readers
            if trained[op] or self.updates.steps[op]
        }
        return [tower for tower in towers if not training.isdisjoint(tower.devices)] or towers

    @cached_property
    def examples(self) -> Sequence[int]:
        """For each op whether its value depends on examples from a placeholder or pipeline."""
        return self.flow.masks([int(kind in EXAMPLE_SOURCES) for kind in self.flow.types])

    @cached_property
    def backward(self) -> Backward:
        return Backward(self.placement, self.flow)

    @cached_property
    def updates(self) -> Updates:
        return Updates(self.placement, self.flow)

    @cached_property
    def losses(self) -> Losses:
        return losses_of(
            self.placement, self.flow, self.tower_of, self.towers_behind, len(self.towers)
        )

    @cached_property
    def all_towers(self) -> int:
        """The bits of all towers."""
        return (1 << len(self.towers)) - 1

    @cached_property
    def gradient_bit(self) -> int:
        """The bit of a value that depends on a backward op."""
        return 1 << len(self.towers)

    @cached_property
    def tower_of(self) -> Sequence[int]:
        """For each op the number of the tower on whose GPU it is asked to be, or -1.

        An op that asks for no device goes with what it is colocated with, a backward op with
        its forward op: that is the tower it works for, wherever it was put.
        """
        numbers = {
            device: number for number, tower in enumerate(self.towers) for device in tower.devices
        }
        of_request = {
            requested: numbers.get(tower_device(requested), -1) if requested.is_gpu else -1
            for requested in {op.requested for op in self._ops}
        }
        towers: list[int] = []
        for op in self._ops:
            tower = of_request[op.requested]
            if tower < 0 and op.colocated and op.requested.type is None:
                tower = next(
                    (
                        towers[number]
                        for number in map(self.flow.number.get, op.colocated)
                        if number is not None and number < len(towers)
                    ),
                    -1,
                )
            towers.append(tower)
        for number, (forward, _) in self.backward.forward.items():
            if towers[forward] >= 0:
                towers[number] = towers[forward]
        return towers

    @cached_property
    def own_towers(self) -> Sequence[int]:
        """For each op the tower it computes for, as a bit; 0 for those that may join towers.

        Where an op is asked to be is not enough: towers may be averaged on the GPU of one. Ops
        that read variables, backward ops and inputs on a tower's GPU are that tower's.
        """
        own = [0] * len(self._ops)
        for readers in self.reads_by_gpu.readers.values():
            for op in readers:
                if self.tower_of[op] >= 0:
                    own[op] = 1 << self.tower_of[op]
        for op, kind in enumerate(self.flow.types):
            if self.tower_of[op] < 0:
                own[op] = self.gradient_bit if self.backward.ops[op] else 0
            elif self.backward.ops[op]:
                own[op] = 1 << self.tower_of[op] | self.gradient_bit
            elif kind in EXAMPLE_SOURCES:
                own[op] = 1 << self.tower_of[op]
        return own

    @cached_property
    def towers_behind(self) -> Sequence[int]:
        """For each op the towers that its value depends on, a bit each, and `gradient_bit`."""
        return self.flow.masks(self.own_towers)

    def without_regularisation(self, loss: int) -> int:
        """The part of a loss that depends on examples, where the rest is added to it."""
        while self.flow.types[loss] in ADDS:
            terms = [term for term in self.flow.inputs[loss] if self.examples[term]]
            if len(terms) != 1 or len(self.flow.inputs[loss]) == 1:
                break
            loss = terms[0]
        return loss

    @cached_property
    def mixed_losses(self) -> Sequence[MixedLoss]:
        """The losses of towers that contain what another tower computes.

        That is, what it computes with a variable that both read: a layer that one GPU computes for
        all towers does not count.
        """
        found = []
        for number, losses in enumerate(self.losses.of):
            for loss in losses:
                others = self.towers_behind[loss] & self.all_towers & ~(1 << number)
                of_others = {
                    op
                    for variable in (self.towers[number].reads if others else ())
                    for op in self.reads_by_gpu.readers[variable]
                    if self.tower_of[op] >= 0
                    and others >> self.tower_of[op] & 1
                    and not self.backward.ops[op]
                }
                path = self.flow.path(loss, of_others.__contains__) if of_others else []
                if path:
                    found.append(MixedLoss(number, path))
        return found

    def towers_in(self, mask: int) -> Iterator[int]:
        """The numbers of the towers whose bits are set."""
        return (number for number in range(len(self.towers)) if mask >> number & 1)

    def names_of(self, mask: int) -> str:
        """``the tower on /device:GPU:0``, or ``the towers on …``, whose bits are set."""
        towers = [self.towers[number] for number in self.towers_in(mask)]
        return f"the {'tower' if len(towers) == 1 else 'towers'} on {joined(towers)}"

    @cached_property
    def variables_read(self) -> frozenset[str]:
        """The variables that the model computes with, on towers or elsewhere."""
        return frozenset(
            variable
            for variable, readers in self.reads_by_gpu.readers.items()
            if any(self.reads_by_gpu.in_model(op) for op in readers)
        )


def analyse(placement: Placement) -> TowerAnalysis:
    """The analysis of a placement, made once."""
    return placement.cached(TowerAnalysis)
