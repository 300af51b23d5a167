"""The analysis of one placement: its towers, and the ops that depend on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, cast

from placement_checks.analysis.graph.analysis import GraphAnalysis
from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.by_loss import CopiesByLoss, ModelCopies, single_tower
from placement_checks.analysis.towers.discovery import (
    ReadsBySite,
    Site,
    Tower,
    TowersByLoss,
    micro_batches,
    serving_sites,
    tower_of_ops,
    towers_by_loss,
)
from placement_checks.core.devices import Device
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import EXAMPLE_SOURCES, SUMS_UP, TAKES_PART
from placement_checks.core.placement import Placement
from placement_checks.util.text import range_text

_FIX = (
    "run placement-checks verify on the function that builds the graph, and return the losses "
    "from it: {'loss': [one per tower]}"
)


class TowerLosses(NamedTuple):
    """The losses of the towers, however the towers were found: by losses or by devices.

    Attributes:
        by_tower: for each tower its losses, as ops.
        joint: whether one loss trains all towers. ``by_tower`` then has the parts of this loss:
            the last ops before the loss that belong to one tower.
        unknown: why the losses are unknown; None if they are known.
    """

    by_tower: Sequence[Sequence[OpId]]
    joint: bool = False
    unknown: Missing | None = None

    def items(self) -> Iterator[tuple[TowerIndex, Sequence[OpId]]]:
        """Yield each tower with its losses."""
        return cast(Iterator[tuple[TowerIndex, Sequence[OpId]]], enumerate(self.by_tower))


class TowerAnalysis(GraphAnalysis):
    """The towers of one placement. Rules share it: `analyze` creates one for each placement."""

    def prepare(self) -> None:
        """Compute in advance the properties that most rules use."""
        for name in ("towers_behind", "losses", "examples"):
            getattr(self, name)

    @cached_property
    def reads_by_site(self) -> ReadsBySite:
        """The variables that are read at each site."""
        return ReadsBySite(self, self.sites, self.by_loss)

    @cached_property
    def towers(self) -> Sequence[Tower]:
        """The copies of the model that are trained; all copies if none is trained.

        A copy that only evaluates is part of no step and has no gradients.
        """
        towers = self.reads_by_site.towers()
        trained = self.flow.reachable(self.backward.numbers())
        if not trained:
            return towers
        training = {
            self.sites[op]
            for readers in self.reads_by_site.readers.values()
            for op in readers
            if op in trained or self.updates.in_step[op]
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
        """The losses of each tower: ops of `loss_ops`, or parts of a joint loss."""
        if not self.loss_ops:
            return TowerLosses((), unknown=Missing("the loss of each tower is unknown", _FIX))
        by_tower: list[list[OpId]] = [[] for _ in self.towers]
        joint: list[OpId] = []
        for loss in self.loss_ops:
            tower = self.tower_of[loss]
            if tower is None:
                tower = single_tower(self.towers_of(loss))
            (joint if tower is None else by_tower[tower]).append(loss)
        missing = [of_tower for of_tower in by_tower if not of_tower]
        terms = frozenset(chain.from_iterable(map(self._terms_of_loss, chain(*by_tower))))
        if len(missing) == len(joint) < len(by_tower) and all(
            terms.intersection(self.flow.reachable([loss])) for loss in joint
        ):
            # The remaining losses, which contain the others by mistake, belong to the remaining
            # towers, in the same order.
            for of_tower, loss in zip(missing, joint, strict=True):
                of_tower.append(loss)
        if all(by_tower):
            return TowerLosses(by_tower)
        parts: list[list[OpId]] = [[] for _ in self.towers]
        for loss in self.loss_ops:
            for part, number in self._parts_of_loss(loss):
                parts[number].append(part)
        if all(parts):
            return TowerLosses(parts, joint=True)
        return TowerLosses((), unknown=Missing("the losses of some towers are unknown", _FIX))

    def _is_scalar(self, op: OpId) -> bool:
        outputs = self.placement.details.outputs(self.flow.names[op])
        return [output.shape for output in outputs] == [()]

    def _terms_of_loss(self, loss: OpId) -> Iterator[OpId]:
        """Yield a loss, and the scalars computed from examples that it adds up or averages."""

        def is_end(op: OpId) -> bool:
            adds_up = self.flow.types[op] in SUMS_UP and self._is_scalar(op)
            return op != loss and not adds_up

        for op in self.flow.reachable([loss], until=is_end):
            if op == loss or (self.examples[op] and self._is_scalar(op)):
                yield op

    def _parts_of_loss(self, loss: OpId) -> Iterator[tuple[OpId, TowerIndex]]:
        """Yield the last ops before ``loss`` that belong to one tower, each with the tower.

        An op belongs to the tower that it works for. If it works for no tower, or if the loss
        itself works for a tower, the op belongs to the only tower that it depends on.
        """

        def tower_of_end(op: OpId) -> TowerIndex | None:
            behind = self.towers_of(op)
            tower = self.tower_of[op] if behind and self.tower_of[loss] is None else None
            return single_tower(behind) if tower is None else tower

        def is_end(op: OpId) -> bool:
            return op != loss and (not self.towers_of(op) or tower_of_end(op) is not None)

        for op in sorted(self.flow.reachable([loss], until=is_end) - {loss}):
            if (tower := tower_of_end(op)) is not None:
                yield op, tower

    @cached_property
    def all_towers(self) -> TowerMask:
        """The mask of all towers."""
        return TowerMask((1 << len(self.towers)) - 1)

    @cached_property
    def gradient_bit(self) -> int:
        """The bit that marks values that depend on a backward op."""
        return 1 << len(self.towers)

    @cached_property
    def tower_indices(self) -> Sequence[TowerIndex]:
        """The indices into `towers`."""
        return cast(Sequence[TowerIndex], range(len(self.towers)))

    @cached_property
    def tower_of(self) -> Sequence[TowerIndex | None]:
        """For each op the only tower that it works for; None for the host and for shared ops."""
        towers = {site: n for n in self.tower_indices for site in self.towers[n].sites}
        return tower_of_ops(self, self.reads_by_site, towers)

    @cached_property
    def own_towers(self) -> Sequence[TowerMask]:
        """For each op the bit of the tower that it belongs to; 0 if it may combine towers.

        The requested device alone does not decide: the average of all towers may be on the GPU of
        one tower. Ops that read variables, backward ops, and inputs of one tower alone belong to
        the tower that they work for. Backward ops also have `gradient_bit`.
        """
        own = [0] * len(self.flow.names)
        read = set(chain.from_iterable(self.reads_by_site.readers.values()))
        for op, kind, tower in zip(self.flow.ops, self.flow.types, self.tower_of, strict=True):
            if self.backward.ops[op]:
                own[op] = self.gradient_bit
            if tower is not None and (
                own[op]
                or op in read
                or (kind in EXAMPLE_SOURCES and self._feeds_only_its_tower(op))
            ):
                own[op] |= 1 << tower
        return cast(list[TowerMask], own)

    def _feeds_only_its_tower(self, source: OpId) -> bool:
        """Whether the tower on its GPU alone computes with an input.

        A program may build its placeholders in the scope of one GPU, and the towers afterwards.
        """
        flow, tower_of, ops = self.flow, self.tower_of, self.placement.by_number

        def computes(op: OpId) -> bool:
            return op != source and flow.types[op] not in TAKES_PART

        reached = flow.reachable([source], flow.consumers, until=computes)
        on_gpus = filter(lambda op: computes(op) and ops[op].requested.is_gpu, reached)
        return {tower_of[op] for op in on_gpus} <= {tower_of[source]}

    @cached_property
    def towers_behind(self) -> Sequence[TowerMask]:
        """For each op the towers that its value depends on, and `gradient_bit`."""
        return self.flow.propagate(self.own_towers)

    def towers_of(self, *ops: OpId) -> TowerMask:
        """Return the towers that the value of any of the ops depends on."""
        return TowerMask(union(self.towers_behind[op] for op in ops) & self.all_towers)

    def has_gradient(self, op: OpId) -> bool:
        """Whether the value of an op depends on a backward op."""
        return bool(self.towers_behind[op] & self.gradient_bit)

    def towers_in(self, mask: int) -> Sequence[TowerIndex]:
        """Return the towers in a mask."""
        return [tower for tower in self.tower_indices if mask >> tower & 1]

    def names_of(self, mask: int, kind: str = "tower") -> str:
        """Name the towers in a mask, as in ``the tower on /device:GPU:0``, or the replicas."""
        towers = [self.towers[number] for number in self.towers_in(mask)]
        return f"the {kind if len(towers) == 1 else f'{kind}s'} on {range_text(map(str, towers))}"

    def towers_on(self, pattern: Device) -> TowerMask:
        """Return the towers that use a device that matches ``pattern``."""
        return TowerMask(
            sum(
                1 << number
                for number in self.tower_indices
                if any(device.matches(pattern) for device in self.towers[number].devices)
            )
        )

    def devices_of(self, mask: int) -> tuple[Device, ...]:
        """Return the devices of the towers in a bit mask."""
        towers = (self.towers[number] for number in self.towers_in(mask))
        return tuple(device for tower in towers for device in tower.devices)

    @cached_property
    def variables_read(self) -> frozenset[str]:
        """The variables that the model computes with, on towers or on the host."""
        return frozenset(
            variable
            for variable, readers in self.reads_by_site.readers.items()
            if any(self.reads_by_site.in_model(op) for op in readers)
        )


def analyze(placement: Placement) -> TowerAnalysis:
    """Return the analysis of a placement, computed once."""
    return placement.cached(TowerAnalysis)
