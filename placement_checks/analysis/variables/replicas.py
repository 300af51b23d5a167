"""Replicas: the copies that a strategy keeps of a variable, and which of them drift apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.op_types import (
    ADDS,
    COLLECTIVES,
    EXAMPLE_SOURCES,
    PLACEHOLDERS_TO_FEED,
    RANDOM_STATEFUL,
)
from placement_checks.core.placement import Placement

HANDLE = "resource"  # the dtype
Groups = Sequence[Sequence[str]]
_NOT_UPDATED = -1


class Replicas:
    """The copies of the variables of a strategy; `Placement.cached` keeps it.

    Copies that are meant to be equal stay so as long as all of them take the same. They drift if
    their updates are made of different examples or random numbers, or of what drifts itself. What
    is made of neither is taken to be the same for all, and so is each reading of copies that are
    equal.

    Where replicas meet in the model, as by moments that all of them share, the examples of each
    reach the gradients of all. There a sum of all replicas is the same for all, and copies drift
    that take gradients of their own replica alone, which depend on its examples beside such sums.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyse(placement)

    @cached_property
    def copies(self) -> Mapping[str, Sequence[str]]:
        """The copies of each variable that are meant to be equal, in the order of replicas."""
        groups: dict[str, dict[int, str]] = defaultdict(dict)
        strategy = self._placement.strategy
        for name, copy in strategy.copies.items() if strategy is not None else ():
            if copy.in_sync:
                groups[copy.of][copy.replica] = name
        return {
            of: [name for _, name in sorted(copies.items())]
            for of, copies in groups.items()
            if len(copies) > 1
        }

    @cached_property
    def sums_without_key(self) -> Sequence[str]:
        """The collectives whose key nothing gives them, so that they cannot run.

        A function that the step calls in a branch, which is in a loop, gets a placeholder for it
        there that TensorFlow does not feed (cross_device_utils.py, ``_next_instance_key``).
        """
        flow = self._analysis.flow
        placeholders = {
            op
            for op in flow.having(PLACEHOLDERS_TO_FEED.__contains__)
            if not self._is_handle(flow.names[op])
        }
        return [
            flow.names[member]
            for member in flow.having(COLLECTIVES.__contains__)
            if not placeholders.isdisjoint(flow.control_inputs.get(member, ()))
        ]

    @cached_property
    def drifting(self) -> Mapping[str, Groups]:
        """The variables whose copies drift, each with its copies: those that stay equal together.

        Not what only collects the gradients of each replica until they are added up.
        """
        found: Mapping[str, Groups] = {}
        new = self._taking_different(found)
        while len(new) > len(found):
            found, new = new, self._taking_different(new)
        return {name: groups for name, groups in found.items() if not self._collects(name, found)}

    def _taking_different(self, drifting: Collection[str]) -> Mapping[str, Groups]:
        """The variables whose copies take different examples, or what is known to drift."""
        of_drifting = ([copy] for name in drifting for copy in self.copies[name])
        sources = [*self._sources(), *of_drifting]
        taken = self._taken(sources)
        beside_sums = self._taken(sources, self._brings_together) if self._own_gradients else {}
        found = {}
        for name, copies in self.copies.items():
            groups = _groups(copies, taken)
            if len(groups) == 1 and name in self._own_gradients:
                groups = _groups(copies, beside_sums)
            if len(groups) > 1:
                found[name] = groups
        return found

    @cached_property
    def _own_gradients(self) -> Collection[str]:
        """The variables of which each copy takes gradients of other replicas than all others."""
        gradients = gradient_flow(self._placement)
        found = set()
        for name, copies in self.copies.items():
            towers = [
                reduce(or_, map(gradients.towers, gradients.trained.get(copy, ())), 0)
                for copy in copies
            ]
            if all(towers) and len(set(towers)) == len(towers):
                found.add(name)
        return found

    @cached_property
    def _brings_together(self) -> Sequence[bool]:
        """For each op whether it gives all replicas what they have computed together."""
        flow, tower_of = self._analysis.flow, self._analysis.tower_of
        found = [kind in COLLECTIVES for kind in flow.types]
        for op in flow.having(ADDS.__contains__):
            found[op] = len({tower_of[source] for source in flow.inputs[op]} - {-1}) > 1
        return found

    def _sources(self) -> Iterator[Sequence[str]]:
        """The ops whose values may differ from one replica to another; equal ones together."""
        flow, strategy = self._analysis.flow, self._placement.strategy
        for op in flow.having(EXAMPLE_SOURCES.__contains__):
            if not self._is_handle(flow.names[op]):
                yield [flow.names[op]]
        yield from self._draws()
        if strategy is not None:
            yield from ([name] for name, copy in strategy.copies.items() if not copy.in_sync)

    def _draws(self) -> Iterator[Sequence[str]]:
        """The ops that draw random numbers, those of equal seeds together: they draw the same.

        Not those whose numbers follow from a seed that they are given, such as Keras's.
        """
        flow = self._analysis.flow
        alike: dict[Hashable, list[str]] = defaultdict(list)
        for op in flow.having(RANDOM_STATEFUL.__contains__):
            name = flow.names[op]
            attributes = self._placement.details.attributes(name)
            seeds = attributes.get("seed", 0), attributes.get("seed2", 0)
            alike[(flow.types[op], *seeds) if any(seeds) else name].append(name)
        yield from alike.values()

    def _is_handle(self, placeholder: str) -> bool:
        """Whether it stands for an iterator, or for what orders sums, and for no examples."""
        outputs = self._placement.details.outputs(placeholder)
        return bool(outputs) and all(output.dtype == HANDLE for output in outputs)

    def _taken(
        self, sources: Sequence[Sequence[str]], ends: Sequence[bool] | None = None
    ) -> Mapping[str, int]:
        """Of which sources the updates of each variable are made, a bit each; not by ``ends``."""
        flow = self._analysis.flow
        own = [0] * len(flow.names)
        for bit, names in enumerate(sources):
            for name in names:
                own[flow.number[name]] = 1 << bit
        masks = flow.masks(own, ends)
        taken: dict[str, int] = {}
        for variable, updates in self._analysis.updates.by_variable.items():
            taken[variable] = 0
            for update in updates:
                for value in update.values:
                    taken[variable] |= masks[value]
        return taken

    def _collects(self, variable: str, drifting: Collection[str]) -> bool:
        """Whether what its copies hold is only taken, from all of them, by what does not drift."""
        copies = self.copies[variable]
        reads = self._analysis.reads_by_gpu
        if any(reads.in_loss(op) for copy in copies for op in reads.readers[copy]):
            return False
        taken = self._taken([copies])
        takers = {name for name, mask in taken.items() if mask} - set(copies)
        drifting_copies = {copy for name in drifting for copy in self.copies[name]}
        return bool(takers) and takers.isdisjoint(drifting_copies)


def _groups(copies: Sequence[str], taken: Mapping[str, int]) -> Groups:
    """The copies, those that take the same together."""
    groups: dict[int, list[str]] = defaultdict(list)
    for copy in copies:
        groups[taken.get(copy, _NOT_UPDATED)].append(copy)
    return list(groups.values())


def replicas(placement: Placement) -> Replicas:
    """The replicas of a placement, found once."""
    return placement.cached(Replicas)
