"""Mixed losses: losses of a tower that contain values of another tower, and doubled penalties.

A penalty is a part of a loss that depends on weights alone, such as weight decay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, permutations, product
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import connected_groups
from placement_checks.analysis.graph.value_numbering import EqualTensors
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.by_loss import reachability_masks, single_tower
from placement_checks.analysis.towers.discovery import complete_device
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core.devices import Device
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.op_types import CONST, SCALES, SUMS_UP
from placement_checks.core.placement import Placement


class MixedLoss(NamedTuple):
    """A loss that contains values of another tower.

    Attributes:
        tower: the number of the tower that the loss belongs to.
        other: the number of the other tower.
        path: the ops from the loss back to an op of the other tower.
    """

    tower: TowerIndex
    other: TowerIndex
    path: Sequence[OpId]


class MixedLosses:
    """The losses that contain values of another tower; `mixed_losses` finds them once.

    Towers that depend on each other mutually do so on purpose: they share moments, or a loss
    contrasts the examples of all towers. A loss is mixed in two cases: one of its summands depends
    on another tower, but not on its own tower; or it depends on another tower that does not depend
    on the tower of the loss.

    A value of another tower counts only if it is computed from examples, with a variable that both
    towers read, or have copies of. A layer that one GPU computes for all towers does not count. A
    penalty on the weights counts if both towers compute it, and the loss contains it twice.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis = analyze(placement)
        self._layout = variable_layout(placement)

    @cached_property
    def all(self) -> Sequence[MixedLoss]:
        """The mixed losses, in the order of towers."""
        return list(self._find())

    def _find(self) -> Iterator[MixedLoss]:
        doubled = self._doubled_penalties()
        for number, losses in self._analysis.losses.items():
            for loss in losses:
                contained = self._contained(number, loss)
                ops = self._ops_with_shared_variables(contained, number) if contained else {}
                misplaced = self._misplaced.get(number, {})
                for others in (ops, misplaced, doubled.get(loss, {})):
                    if others and (path := self._analysis.flow.path(loss, others.__contains__)):
                        yield MixedLoss(number, others[path[-1]], path)
                        break

    def _doubled_penalties(self) -> Mapping[OpId, Mapping[OpId, TowerIndex]]:
        """Find the losses that contain two equal penalties: of their tower and of another tower.

        If each tower computes a penalty on the shared weights, and one tower adds up all these
        penalties, the loss of this tower has doubled penalties. A penalty that is computed once,
        and added by every tower, counts once in each loss.

        Returns:
            For each such loss, the penalty of the other tower, and this tower.
        """
        if not self._by_examples:
            return {}
        losses = dict(self._analysis.losses.items())
        equal = EqualTensors(self._analysis)
        penalties = {loss: self._penalties(loss, equal) for loss in chain(*losses.values())}
        found: dict[OpId, Mapping[OpId, TowerIndex]] = {}
        for number, other in permutations(losses, 2):
            for loss, other_loss in product(losses[number], losses[other]):
                for key, ops in penalties[loss].items():
                    shared = ops & penalties[other_loss].get(key, set())
                    if shared and ops - shared:
                        found[loss] = {min(shared): other}
        return found

    def _penalties(self, loss: OpId, equal: EqualTensors) -> Mapping[object, set[OpId]]:
        flow, examples = self._analysis.flow, self._analysis.examples
        found: dict[object, set[OpId]] = defaultdict(set)
        for op in flow.reachable([loss], until=lambda op: flow.types[op] not in SUMS_UP):
            if flow.types[op] not in SUMS_UP and not examples[op] and flow.types[op] != CONST:
                found[equal.key(flow.names[op])].add(op)
        return found

    @cached_property
    def _misplaced(self) -> Mapping[TowerIndex, Mapping[OpId, TowerIndex]]:
        """For each tower its ops that request the GPU of another tower, with the other tower.

        Two ops belong to one group if they work for the same tower, request the same GPU, and one
        op takes the value of the other. If an op of a group reads a variable on this GPU, the
        group is not misplaced: it uses a shard of a table, or an expert, as all towers do.
        """
        analysis = self._analysis
        flow, by_loss, placement = analysis.flow, analysis.by_loss, analysis.placement
        if by_loss is None:
            return {}
        sites = by_loss.by_site.items()
        owners = {site.device: tower for site, tower in sites if site.tower is None}
        misplaced_ops: dict[OpId, tuple[TowerIndex, Device]] = {}
        for op, mask in zip(flow.ops, reachability_masks(flow, by_loss.losses), strict=True):
            tower, request = single_tower(mask), placement.by_number[op].requested
            if tower is not None and request.is_gpu and analysis.examples[op]:
                device = complete_device(request)
                is_bound = placement.by_number[op].colocated or analysis.backward.ops[op]
                if not is_bound and owners.get(device, tower) != tower:
                    misplaced_ops[op] = tower, device
        with_variable = {
            op
            for variable, readers in analysis.reads_by_site.readers.items()
            for op in readers
            if op in misplaced_ops
            and complete_device(placement.ops[variable].requested) == misplaced_ops[op][1]
        }
        found: dict[TowerIndex, dict[OpId, TowerIndex]] = defaultdict(dict)
        pairs = [
            (op, source)
            for op, label in misplaced_ops.items()
            for source in flow.inputs[op]
            if misplaced_ops.get(source) == label
        ]
        for group in connected_groups(misplaced_ops, pairs):
            if with_variable.isdisjoint(group):
                for op in group:
                    tower, device = misplaced_ops[op]
                    found[tower][op] = owners[device]
        return found

    @cached_property
    def shared_ops(self) -> Mapping[OpId, TowerMask]:
        """The first op that combines each tower with other towers, and a mask of all these towers.

        Only towers that depend on each other mutually count.
        """
        analysis = self._analysis
        found = {}
        for number, losses in analysis.losses.items():
            mutual = self._towers_behind_losses[number]
            for loss in losses:
                mutual &= ~self._contained(number, loss)
            joint = [
                op
                for op in analysis.flow.reachable(losses if mutual else ())
                if analysis.towers_behind[op] & mutual and analysis.towers_behind[op] >> number & 1
            ]
            if joint:
                found[min(joint)] = analysis.towers_of(min(joint))
        return found

    def _contained(self, number: TowerIndex, loss: OpId) -> int:
        """Return a bit mask of the towers that a loss of a tower wrongly contains."""
        contained = 0
        for other in self._analysis.towers_in(self._towers_behind_losses[number]):
            one_sided = not self._towers_behind_losses[other] >> number & 1
            if one_sided or self._has_summand_of(other, loss, without=number):
                contained |= self._analysis.towers_behind[loss] & 1 << other
        return contained

    @cached_property
    def _towers_behind_losses(self) -> Sequence[int]:
        """For each tower a bit mask of the other towers that its losses depend on."""
        return [
            self._analysis.towers_of(*losses) & ~(1 << number)
            for number, losses in self._analysis.losses.items()
        ]

    def _has_summand_of(self, other: TowerIndex, loss: OpId, *, without: TowerIndex) -> bool:
        """Whether a loss, or one of its summands, depends on ``other`` but not on ``without``."""
        towers = self._analysis.towers_behind

        def is_mixed(op: OpId) -> bool:
            return bool(towers[op] >> other & 1 and towers[op] >> without & 1)

        parts = self._analysis.flow.reachable(
            [loss], along=self._summands, until=lambda op: op != loss and not is_mixed(op)
        )
        return any(
            towers[part] >> other & 1
            and not towers[part] >> without & 1
            and self._depends_on_examples(part)
            for part in parts
        )

    def _summands(self, op: OpId) -> Sequence[OpId]:
        """Return the values of towers that an op adds up; empty if it computes something else."""
        flow, towers = self._analysis.flow, self._analysis.towers_behind
        if flow.types[op] not in SUMS_UP:
            return ()
        inputs = [
            source for source in flow.inputs[op] if towers[source] & self._analysis.all_towers
        ]
        return () if flow.types[op] in SCALES and len(inputs) > 1 else inputs

    def _ops_with_shared_variables(
        self, towers: int, number: TowerIndex
    ) -> Mapping[OpId, TowerIndex]:
        """Return the ops of ``towers`` that read a variable of another tower, or a copy of it.

        Args:
            towers: a bit mask of the towers of the ops.
            number: the number of the other tower.

        Returns:
            For each op the tower that it belongs to.
        """
        analysis = self._analysis
        shared = set(analysis.towers[number].reads)
        for variable in analysis.towers[number].reads:
            if variable in self._layout.copies:
                shared.update(self._layout.copies[variable].copies.values())
        return {
            op: tower
            for variable in shared
            for op in analysis.reads_by_site.readers[variable]
            if (tower := analysis.tower_of[op]) is not None
            and towers >> tower & 1
            and not analysis.backward.ops[op]
            and self._depends_on_examples(op)
        }

    def _depends_on_examples(self, op: OpId) -> bool:
        """Whether a value depends on examples; always true if no loss depends on examples."""
        return bool(self._analysis.examples[op]) or not self._by_examples

    @cached_property
    def _by_examples(self) -> bool:
        losses = self._analysis.losses.by_tower
        return any(self._analysis.examples[loss] for of_tower in losses for loss in of_tower)


def mixed_losses(placement: Placement) -> Sequence[MixedLoss]:
    """Return the losses that contain values of another tower, found once."""
    return placement.cached(MixedLosses).all


def shared_ops(placement: Placement) -> Mapping[OpId, TowerMask]:
    """Return the first ops that combine towers which depend on each other mutually.

    Returns:
        For each op a bit mask of the towers that it combines.
    """
    return placement.cached(MixedLosses).shared_ops
