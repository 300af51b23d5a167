"""The analysis of one placement: its towers, and the ops that depend on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.analysis.graph.analysis import GraphAnalysis
from placement_checks.analysis.graph.data_flow import bits_of
from placement_checks.analysis.towers.by_loss import CopiesByLoss, ModelCopies, single_tower
from placement_checks.analysis.towers.discovery import (
    ReadsByGpu,
    Site,
    Tower,
    TowersByLoss,
    micro_batches,
    serving_sites,
    tower_of_ops,
    towers_by_loss,
)
from placement_checks.core.op_types import ADDS, EXAMPLE_SOURCES
from placement_checks.core.placement import Placement
from placement_checks.util.text import range_text

_FIX = (
    "verify the function that builds the graph, which can return them: {'loss': [one per tower]}"
)


class TowerLosses(NamedTuple):
    """The losses of the towers.

    Attributes:
        by_tower: for each tower its losses, as ops.
        joint: whether one loss trains all towers. ``by_tower`` then holds the parts of this loss:
            the last ops before it that belong to one tower.
        unknown: why the losses are unknown; ``""`` if they are known.
    """

    by_tower: Sequence[Sequence[int]]
    joint: bool = False
    unknown: str = ""


class TowerAnalysis(GraphAnalysis):
    """The towers of one placement. Rules share it: `analyze` creates one for each placement."""

    def prepare(self) -> None:
        """Compute in advance the properties that most rules use."""
        for name in ("towers_behind", "losses", "examples"):
            getattr(self, name)

    @cached_property
    def reads_by_gpu(self) -> ReadsByGpu:
        """The variables that each GPU computes with."""
        return ReadsByGpu(self, self.sites, self.by_loss)

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
    def copies(self) -> ModelCopies:
        """The copies of the model, by their losses."""
        return CopiesByLoss(self).copies(self.loss_ops)

    @cached_property
    def by_loss(self) -> TowersByLoss | None:
        """The towers, if the losses determine them; None if the requested devices do."""
        return towers_by_loss(self, self.copies)

    @cached_property
    def micro_batches(self) -> int:
        """The number of copies of the model that run on the same devices in each tower."""
        if self.by_loss is not None:
            return self.by_loss.micro_batches
        return micro_batches(self, self.copies)

    @cached_property
    def sites(self) -> Sequence[Site | None]:
        """For each op the site that it works for; None for the host and shared ops."""
        return serving_sites(self, self.by_loss)

    @cached_property
    def losses(self) -> TowerLosses:
        """The losses of each tower: of the ops in `loss_ops`, or of the parts of a joint loss."""
        if not self.loss_ops:
            return TowerLosses((), unknown=f"the losses are unknown; {_FIX}")
        by_tower: list[list[int]] = [[] for _ in self.towers]
        joint: list[int] = []
        for loss in self.loss_ops:
            tower = self.tower_of[loss]
            if tower < 0:
                tower = single_tower(self.towers_behind[loss] & self.all_towers)
            (by_tower[tower] if tower >= 0 else joint).append(loss)
        missing = [of_tower for of_tower in by_tower if not of_tower]
        if len(missing) == len(joint) < len(by_tower):
            # Each remaining loss belongs to one remaining tower, in this order.
            for of_tower, loss in zip(missing, joint, strict=True):
                of_tower.append(loss)
        if all(by_tower):
            return TowerLosses(by_tower)
        parts: list[list[int]] = [[] for _ in self.towers]
        for loss in self.loss_ops:
            for part, tower in self._parts_of_loss(loss):
                parts[tower].append(part)
        if all(parts):
            return TowerLosses(parts, joint=True)
        return TowerLosses((), unknown=f"the losses of some towers are unknown; {_FIX}")

    def _parts_of_loss(self, loss: int) -> Iterator[tuple[int, int]]:
        """Yield the last ops before ``loss`` that belong to one tower, each with the tower.

        These are ops that work for a tower; if the loss itself works for a tower, ops that depend
        on one tower only.
        """

        def tower(op: int) -> int:
            mask = self.towers_behind[op] & self.all_towers
            if mask and self.tower_of[loss] < 0 <= self.tower_of[op]:
                return self.tower_of[op]
            return single_tower(mask)

        def is_end(op: int) -> bool:
            return op != loss and (tower(op) >= 0 or not self.towers_behind[op] & self.all_towers)

        for op in sorted(self.flow.reachable([loss], until=is_end) - {loss}):
            if tower(op) >= 0:
                yield op, tower(op)

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
        return tower_of_ops(self, self.sites, towers)

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

    def has_gradient(self, op: int) -> bool:
        """Whether the value of an op depends on a backward op."""
        return bool(self.towers_behind[op] & self.gradient_bit)

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
        return bits_of(mask & self.all_towers)

    def names_of(self, mask: int) -> str:
        """Name the towers in a bit mask, as in ``the tower on /device:GPU:0``."""
        towers = [self.towers[number] for number in self.towers_in(mask)]
        return f"the {'tower' if len(towers) == 1 else 'towers'} on {range_text(map(str, towers))}"

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
