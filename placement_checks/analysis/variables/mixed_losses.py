"""Mixed losses: those of towers that contain what another tower computes.

Penalties: the parts of losses that depend on weights alone, such as a decay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.analysis.graph.value_numbering import EqualTensors
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.towers.by_loss import reachability_masks, single_tower
from placement_checks.analysis.towers.discovery import requested_gpu
from placement_checks.analysis.variables.layout import Layout, variable_layout
from placement_checks.core.devices import Device
from placement_checks.core.op_types import CONST, SCALES, SUMS_UP
from placement_checks.core.placement import Placement


class DoubledPenalty(NamedTuple):
    """A penalty of one tower that the loss of another contains beside its own, which is equal."""

    loss: int
    of: int
    op: int


def doubled_penalties(placement: Placement, analysis: TowerAnalysis) -> Iterator[DoubledPenalty]:
    """The penalties that count once more in a tower's loss than in that of another.

    Each tower makes a penalty on the weights that they share, and one gathers all of them. A
    penalty that is made once, and that every tower adds, counts once in each.
    """
    losses = [(number, loss) for number, of in enumerate(analysis.losses.of) for loss in of]
    if not any(analysis.examples[loss] for _, loss in losses):
        return
    equal = EqualTensors(placement, analysis.flow)
    terms = {loss: _terms(analysis, loss, equal) for _, loss in losses}
    for number, loss in losses:
        for other, its_loss in losses:
            if other == number:
                continue
            for key, ops in terms[loss].items():
                theirs = terms[its_loss].get(key, frozenset())
                if ops & theirs and ops - theirs:
                    yield DoubledPenalty(loss, other, min(ops & theirs))


def _terms(
    analysis: TowerAnalysis, loss: int, equal: EqualTensors
) -> Mapping[object, frozenset[int]]:
    """The penalties that a loss adds up, those that are equal by construction together."""
    flow, examples = analysis.flow, analysis.examples
    found: dict[object, set[int]] = defaultdict(set)
    seen = {loss}
    todo = [loss]
    for op in todo:
        if flow.types[op] in SUMS_UP:
            new = [source for source in flow.inputs[op] if source not in seen]
            seen.update(new)
            todo += new
        elif not examples[op] and flow.types[op] != CONST:
            found[equal.of(flow.names[op])].add(op)
    return {key: frozenset(ops) for key, ops in found.items()}


class MixedLoss(NamedTuple):
    """A tower's loss and the way back from it to an op of another tower, the last of the path."""

    tower: int
    other: int
    path: Sequence[int]


class MixedLosses:
    """The losses of towers that contain another tower's; `Placement.cached` keeps them.

    Towers that depend on each other alike are meant to: by moments that all of them share, or a
    loss that holds the examples of each against those of the others. So a loss contains another
    tower's if some part that is added to it is of the other and not of its own; or if it depends
    on the other tower, and the other does not depend on its tower.

    What counts is what the other computes of examples with a variable that its own tower reads as
    well, or has a copy of: a layer that one GPU computes for all towers does not count. So does a
    penalty on the weights that is made by each tower, and is added to the loss of another too.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis: TowerAnalysis = analyse(placement)
        self._layout: Layout = variable_layout(placement)

    @cached_property
    def all(self) -> Sequence[MixedLoss]:
        return list(self._all())

    def _all(self) -> Iterator[MixedLoss]:
        analysis = self._analysis
        for number, losses in enumerate(analysis.losses.of):
            for loss in losses:
                contained = self._contained(number, loss)
                ops = self._ops_of(contained, number) if contained else frozenset()
                path = analysis.flow.path(loss, ops.__contains__) if ops else []
                if path:
                    yield MixedLoss(number, analysis.tower_of[path[-1]], path)
                elif misplaced := self._misplaced.get(number):
                    path = analysis.flow.path(loss, misplaced.__contains__)
                    if path:
                        yield MixedLoss(number, misplaced[path[-1]], path)
                elif loss in self._doubled:
                    other, op = self._doubled[loss]
                    yield MixedLoss(number, other, analysis.flow.path(loss, op.__eq__))

    @cached_property
    def _misplaced(self) -> Mapping[int, Mapping[int, int]]:
        """For each tower its ops that request the GPU of another tower, with that tower.

        Ops belong together if they request one GPU and one takes the value of the other. If one of
        them reads a variable that is on that GPU, they are where they belong: with a shard of a
        table, or an expert, that all towers use.
        """
        analysis = self._analysis
        flow, by_loss, placement = analysis.flow, analysis.by_loss, analysis.placement
        if by_loss is None:
            return {}
        owners = {site.device: tower for site, tower in by_loss.by_site.items() if site.copy < 0}
        away: dict[int, tuple[int, Device]] = {}
        for op, mask in enumerate(reachability_masks(flow, by_loss.losses)):
            tower, request = single_tower(mask), placement.by_number[op].requested
            if tower < 0 or not request.is_gpu or analysis.backward.ops[op]:
                continue
            device = requested_gpu(request)
            is_bound = bool(placement.by_number[op].colocated)
            if analysis.examples[op] and not is_bound and owners.get(device, tower) != tower:
                away[op] = tower, device
        with_variable = {
            op
            for variable, readers in analysis.reads_by_gpu.readers.items()
            for op in readers
            if op in away and requested_gpu(placement.ops[variable].requested) == away[op][1]
        }
        found: dict[int, dict[int, int]] = defaultdict(dict)
        for group in _connected(away, flow):
            if with_variable.isdisjoint(group):
                for op in group:
                    tower, device = away[op]
                    found[tower][op] = owners[device]
        return found

    @cached_property
    def meetings(self) -> Mapping[int, int]:
        """The ops at which towers meet that depend on each other alike, and those towers' bits.

        The first such op on the way to each loss. Nothing tells whether they are meant to.
        """
        analysis = self._analysis
        found = {}
        for number, losses in enumerate(analysis.losses.of):
            alike = self._alike(number)
            if alike:
                op = self._first_of(alike, number, losses)
                found[op] = analysis.towers_behind[op] & analysis.all_towers
        return found

    def _alike(self, number: int) -> int:
        """The towers that a tower's losses depend on, and do not contain, a bit each."""
        contained = 0
        for loss in self._analysis.losses.of[number]:
            contained |= self._contained(number, loss)
        return self._others[number] & ~contained

    def _first_of(self, others: int, number: int, losses: Sequence[int]) -> int:
        """The op built first, of those before some losses, that depends on a tower and others."""
        before = self._analysis.flow.ancestors(losses)
        return next(
            op
            for op, towers in enumerate(self._analysis.towers_behind)
            if before[op] and towers & others and towers >> number & 1
        )

    @cached_property
    def _doubled(self) -> Mapping[int, tuple[int, int]]:
        """For each loss that contains a penalty of another tower beside its own, both of these."""
        doubled = doubled_penalties(self._analysis.placement, self._analysis)
        return {loss: (other, op) for loss, other, op in doubled}

    def _contained(self, number: int, loss: int) -> int:
        """The towers that a loss of the tower of this number wrongly contains, a bit each."""
        contained = 0
        for other in self._analysis.towers_in(self._others[number]):
            one_sided = not self._others[other] >> number & 1
            if one_sided or self._adds_part_of(other, loss, without=number):
                contained |= self._analysis.towers_behind[loss] & 1 << other
        return contained

    @cached_property
    def _others(self) -> Sequence[int]:
        """For each tower the others that its losses depend on, a bit each."""
        found = []
        for number, losses in enumerate(self._analysis.losses.of):
            towers = 0
            for loss in losses:
                towers |= self._analysis.towers_behind[loss]
            found.append(towers & self._analysis.all_towers & ~(1 << number))
        return found

    def _adds_part_of(self, other: int, loss: int, *, without: int) -> bool:
        """Whether a part that is added to a loss depends on one tower and not on its own."""
        analysis = self._analysis
        seen = {loss}
        todo = [loss]
        for op in todo:
            for part in self._added(op):
                towers = analysis.towers_behind[part]
                if not towers >> other & 1 or part in seen:
                    continue
                if towers >> without & 1:
                    seen.add(part)
                    todo.append(part)
                elif self._counts(part):
                    return True
        return False

    def _added(self, op: int) -> Sequence[int]:
        """The parts that an op adds up; none if it does something else with them."""
        flow, towers = self._analysis.flow, self._analysis.towers_behind
        if flow.types[op] not in SUMS_UP:
            return ()
        inputs = [
            source for source in flow.inputs[op] if towers[source] & self._analysis.all_towers
        ]
        return () if flow.types[op] in SCALES and len(inputs) > 1 else inputs

    def _ops_of(self, towers: int, number: int) -> frozenset[int]:
        """What some towers compute with the variables that they share with the one of a number."""
        analysis = self._analysis
        shared = set(analysis.towers[number].reads)
        for variable in analysis.towers[number].reads:
            if variable in self._layout.copies:
                shared.update(self._layout.copies[variable].of.values())
        return frozenset(
            op
            for variable in shared
            for op in analysis.reads_by_gpu.readers[variable]
            if analysis.tower_of[op] >= 0
            and towers >> analysis.tower_of[op] & 1
            and not analysis.backward.ops[op]
            and self._counts(op)
        )

    def _counts(self, op: int) -> bool:
        """Whether a value depends on examples; every value, if no loss does."""
        return bool(self._analysis.examples[op]) or not self._by_examples

    @cached_property
    def _by_examples(self) -> bool:
        losses = self._analysis.losses.of
        return any(self._analysis.examples[loss] for of_tower in losses for loss in of_tower)


def _connected(away: Mapping[int, object], flow: DataFlow) -> Iterable[Collection[int]]:
    """The ops in groups: those with equal values of which one takes the other's result."""
    groups: dict[int, set[int]] = {}
    for op, value in away.items():
        group = {op}
        for source in flow.inputs[op]:
            if away.get(source) == value and source in groups and groups[source] is not group:
                group |= groups[source]
        groups.update(dict.fromkeys(group, group))
    return {id(group): group for group in groups.values()}.values()


def mixed_losses(placement: Placement) -> Sequence[MixedLoss]:
    """The losses of towers that contain what another tower computes, found once."""
    return placement.cached(MixedLosses).all


def shared_ops(placement: Placement) -> Mapping[int, int]:
    """Where towers meet that depend on each other alike: ops, each with the towers' bits."""
    return placement.cached(MixedLosses).meetings
