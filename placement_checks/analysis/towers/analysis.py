"""The analysis of one placement: its towers, and the ops that depend on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from placement_checks.analysis.graph.backward import Backward
from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.analysis.graph.layers import Layers, find_layers
from placement_checks.analysis.graph.updates import Updates
from placement_checks.analysis.towers.by_loss import CopiesByLoss, ModelCopies, loss_ops
from placement_checks.analysis.towers.discovery import (
    ReadsByGpu,
    Site,
    Tower,
    TowersByLoss,
    cached_inputs,
    depends_on_inputs,
    micro_batches,
    serving_sites,
    tower_of_ops,
    towers_by_loss,
)
from placement_checks.analysis.towers.losses import Losses, tower_losses
from placement_checks.core.devices import Device
from placement_checks.core.op_types import ADDS, EXAMPLE_SOURCES
from placement_checks.core.placement import Placement
from placement_checks.util.text import range_text


class TowerAnalysis:
    """The towers of one placement. Rules share it: `analyze` creates one for each placement.

    Attributes:
        placement: the program.
        flow: the edges of the program.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.flow = DataFlow(placement)

    def prepare(self) -> None:
        """Compute in advance the properties that most rules use."""
        for name in ("towers_behind", "losses", "examples"):
            getattr(self, name)

    @cached_property
    def reads_by_gpu(self) -> ReadsByGpu:
        """The variables that each GPU computes with."""
        return ReadsByGpu(
            self.placement, self.flow, self.backward, self.updates, self.sites, self.by_loss
        )

    @cached_property
    def towers(self) -> Sequence[Tower]:
        """The copies of the model that are trained; all copies if none is trained.

        A copy that only evaluates is part of no step and has no gradients.
        """
        towers = self.reads_by_gpu.towers()
        trained = self.flow.reachable(self.backward.numbers())
        if not trained:
            return towers
        training = {
            self.sites[op]
            for readers in self.reads_by_gpu.readers.values()
            for op in readers
            if op in trained or self.updates.steps[op]
        }
        if self.by_loss is not None:
            training |= self.by_loss.by_site.keys()
        return [tower for tower in towers if not training.isdisjoint(tower.sites)] or towers

    @cached_property
    def layers(self) -> Layers:
        """The variable that is read last on the way to each op."""
        return find_layers(self.flow, self.backward)

    @cached_property
    def loss_ops(self) -> Sequence[int]:
        """The ops that the program takes gradients of, or else the losses that it reports."""
        return loss_ops(self.placement.step, self.flow)

    @cached_property
    def copies_by_loss(self) -> CopiesByLoss:
        """Groups losses by the copy of the model that computes them."""
        return CopiesByLoss(self.flow, self.layers, self.backward, self.examples)

    @cached_property
    def copies(self) -> ModelCopies:
        """The copies of the model, by their losses."""
        return self.copies_by_loss.copies(self.loss_ops)

    @cached_property
    def by_loss(self) -> TowersByLoss | None:
        """The towers, if the losses determine them; None if the requested devices do."""
        return towers_by_loss(self.placement, self.flow, self.copies, self.copies_by_loss.in_model)

    @cached_property
    def micro_batches(self) -> int:
        """The number of copies of the model that run on the same devices in each tower."""
        if self.by_loss is not None:
            return self.by_loss.micro_batches
        return micro_batches(self.placement, self.flow, self.copies, self.copies_by_loss.in_model)

    @cached_property
    def examples(self) -> Sequence[int]:
        """For each op whether its value depends on examples."""
        return depends_on_inputs(self.placement, self.flow)

    @cached_property
    def cached_inputs(self) -> frozenset[str]:
        """The variables that hold examples."""
        return cached_inputs(self.placement)

    @cached_property
    def sites(self) -> Sequence[Site | None]:
        """For each op the site that it works for; None for the host and shared ops."""
        return serving_sites(
            self.placement,
            self.flow,
            self.backward,
            self.examples,
            self.by_loss,
            self.copies_by_loss.in_model,
        )

    @cached_property
    def backward(self) -> Backward:
        """The backward pass."""
        return Backward(self.placement, self.flow)

    @cached_property
    def updates(self) -> Updates:
        """The updates of variables."""
        return Updates(self.placement, self.flow)

    @cached_property
    def losses(self) -> Losses:
        """The losses of each tower."""
        return tower_losses(
            self.loss_ops, self.flow, self.tower_of, self.towers_behind, len(self.towers)
        )

    @cached_property
    def all_towers(self) -> int:
        """The bit mask of all towers: tower 0 has the lowest bit."""
        return (1 << len(self.towers)) - 1

    @cached_property
    def gradient_bit(self) -> int:
        """The bit that marks values that depend on a backward op."""
        return 1 << len(self.towers)

    @cached_property
    def tower_of(self) -> Sequence[int]:
        """For each op the number of the only tower that it works for, or -1."""
        towers = {site: number for number, tower in enumerate(self.towers) for site in tower.sites}
        return tower_of_ops(self.placement, self.flow, self.backward, self.sites, towers)

    @cached_property
    def own_towers(self) -> Sequence[int]:
        """For each op the bit of the tower that it belongs to; 0 if it may combine towers.

        The requested device alone does not decide: the average of all towers may be on the GPU of
        one tower. Ops that read variables, backward ops and inputs belong to the tower that they
        work for. Backward ops also have `gradient_bit`.
        """
        own = [0] * len(self.flow.names)
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
        """For each op a bit mask of the towers that its value depends on, and `gradient_bit`."""
        return self.flow.propagate(self.own_towers)

    def without_regularization(self, loss: int) -> int:
        """Return the only summand of a loss that depends on examples; the loss if several do."""
        while self.flow.types[loss] in ADDS:
            terms = [term for term in self.flow.inputs[loss] if self.examples[term]]
            if len(terms) != 1 or len(self.flow.inputs[loss]) == 1:
                break
            loss = terms[0]
        return loss

    def towers_in(self, mask: int) -> Iterator[int]:
        """Yield the numbers of the towers in a bit mask."""
        return (number for number in range(len(self.towers)) if mask >> number & 1)

    def names_of(self, mask: int) -> str:
        """Name the towers in a bit mask, as in ``the tower on /device:GPU:0``."""
        towers = [self.towers[number] for number in self.towers_in(mask)]
        return f"the {'tower' if len(towers) == 1 else 'towers'} on {range_text(map(str, towers))}"

    def devices_of(self, mask: int) -> tuple[Device, ...]:
        """Return the devices of the towers in a bit mask."""
        towers = (self.towers[number] for number in self.towers_in(mask))
        return tuple(device for tower in towers for device in tower.devices)

    @cached_property
    def variables_read(self) -> frozenset[str]:
        """The variables that the model computes with, on towers or on the host."""
        return frozenset(
            variable
            for variable, readers in self.reads_by_gpu.readers.items()
            if any(self.reads_by_gpu.in_model(op) for op in readers)
        )


def analyze(placement: Placement) -> TowerAnalysis:
    """Return the analysis of a placement, computed once."""
    return placement.cached(TowerAnalysis)
