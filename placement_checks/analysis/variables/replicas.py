"""Replicas: the copies of variables that a strategy keeps equal, and the copies that drift."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.analysis import analyze
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


class Replicas:
    """The copies of the variables of a strategy; `replicas` finds them once.

    Copies drift if their updates depend on different examples, different random numbers, or other
    variables that drift. All other values are assumed to be equal on all replicas, and so are
    reads of copies that do not drift. A scalar that ranks feed, such as a learning rate, does not
    count as an example: it is equal if the ranks feed the same value.

    Sums over the replicas are equal on all replicas. But a copy may add to such a sum what its own
    replica computes. So the updates of all copies must depend on the same values, both with the
    terms of these sums and without them.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyze(placement)
        strategy = placement.strategy
        self._strategy_copies = {} if strategy is None else strategy.copies
        self._fed_scalars = {} if strategy is None else strategy.fed_scalars

    @cached_property
    def copies(self) -> Mapping[str, Sequence[str]]:
        """The copies of each variable that the strategy keeps equal, in the order of replicas."""
        groups: dict[str, dict[int, str]] = defaultdict(dict)
        for name, copy in self._strategy_copies.items():
            if copy.in_sync:
                groups[copy.first][copy.replica] = name
        return {
            variable: [name for _, name in sorted(copies.items())]
            for variable, copies in groups.items()
            if len(copies) > 1
        }

    @cached_property
    def sums_without_key(self) -> Sequence[str]:
        """The collectives that cannot run because nothing feeds their instance key.

        In a function that the step calls in a branch inside a loop, the key is a placeholder that
        TensorFlow does not feed (cross_device_utils.py, ``_next_instance_key``).
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
        """The variables with copies that drift, each with groups of copies that stay equal.

        Variables that only collect the gradients of each replica, until these gradients are added
        up, are left out.
        """
        found: Mapping[str, Groups] = {}
        while len(new := self._find_drifting(found)) > len(found):
            found = new
        return {name: groups for name, groups in found.items() if not self._collects(name, found)}

    def _find_drifting(self, drifting: Collection[str]) -> Mapping[str, Groups]:
        """Return the variables with copies that depend on different or drifting values."""
        of_drifting = ([copy] for name in drifting for copy in self.copies[name])
        sources = [*self._sources(), *of_drifting]
        inputs = self._update_sources(sources)
        own = self._update_sources(sources, self._are_equal)
        groups = {name: _equal_copies(copies, inputs, own) for name, copies in self.copies.items()}
        return {name: each for name, each in groups.items() if len(each) > 1}

    @cached_property
    def _are_equal(self) -> Sequence[bool]:
        """For each op whether it is a sum over replicas, or calls a function with such a sum."""
        flow, tower_of = self._analysis.flow, self._analysis.tower_of
        sums = flow.having(COLLECTIVES.__contains__)
        for op in flow.having(ADDS.__contains__):
            if len({tower_of[source] for source in flow.inputs[op]} - {None}) > 1:
                sums.append(op)
        callers = flow.callers
        found = flow.reachable(sums, lambda op: [callers[op]] if op in callers else ())
        return [op in found for op in flow.ops]

    def _sources(self) -> Iterator[Sequence[str]]:
        """Yield the ops with values that may differ between replicas, grouped by equal values."""
        flow = self._analysis.flow
        alike: dict[Hashable, list[str]] = defaultdict(list)
        for op in flow.having(EXAMPLE_SOURCES.__contains__):
            name = flow.names[op]
            if not self._is_handle(name):
                alike[self._fed_scalars.get(name, name)].append(name)
        yield from ([name] for name, copy in self._strategy_copies.items() if not copy.in_sync)
        # Random numbers are equal if their seeds are equal. Stateless random ops have no such
        # seeds: their inputs decide.
        for op in flow.having(RANDOM_STATEFUL.__contains__):
            alike[self._analysis.draw_key(op)].append(flow.names[op])
        yield from alike.values()

    @cached_property
    def random_ops(self) -> Collection[str]:
        """The random ops whose numbers may differ between replicas."""
        flow = self._analysis.flow
        return {flow.names[op] for op in flow.having(RANDOM_STATEFUL.__contains__)}

    def own_sources(self, variable: str, among: Collection[str]) -> Sequence[str]:
        """The ops of ``among`` that alone make the copies of a variable drift; empty if others do.

        An example is noise that each replica adds to the sum of all gradients.
        """
        flow, updates = self._analysis.flow, self._analysis.updates
        sources = [each for each in self._sources() if each[0] not in among]
        copies = self.copies[variable]
        inputs, own = (self._update_sources(sources, keep) for keep in (None, self._are_equal))
        if len(_equal_copies(copies, inputs, own)) > 1:
            return ()
        behind = flow.reachable(updates.values(copies[0]), until=self._are_equal.__getitem__)
        return [flow.names[op] for op in sorted(behind) if flow.names[op] in among]

    def _is_handle(self, placeholder: str) -> bool:
        """Whether a placeholder holds a resource, such as an iterator, instead of examples."""
        outputs = self._placement.details.outputs(placeholder)
        return bool(outputs) and all(output.dtype == HANDLE for output in outputs)

    def _update_sources(
        self, sources: Sequence[Sequence[str]], keep: Sequence[bool] | None = None
    ) -> Mapping[str, int]:
        """Return for each updated variable a mask of the sources that its updates depend on.

        Args:
            sources: groups of ops, with a bit each.
            keep: for each op whether its dependencies on sources are ignored.
        """
        flow, updates = self._analysis.flow, self._analysis.updates
        marks = flow.marks([flow.number[name] for name in names] for names in sources)
        masks = flow.propagate(marks, keep=keep)
        return {
            variable: union(masks[op] for op in updates.values(variable))
            for variable in updates.by_variable
        }

    def _collects(self, variable: str, drifting: Collection[str]) -> bool:
        """Whether the values of the copies are used only to update variables that do not drift."""
        copies = self.copies[variable]
        reads = self._analysis.reads_by_site
        if any(reads.in_loss(op) for copy in copies for op in reads.readers[copy]):
            return False
        updated = {name for name, mask in self._update_sources([copies]).items() if mask}
        others = updated.difference(copies)
        drifting_copies = {copy for name in drifting for copy in self.copies[name]}
        return bool(others) and others.isdisjoint(drifting_copies)


def _equal_copies(copies: Sequence[str], *sources: Mapping[str, int]) -> Groups:
    """Group the copies by the sources that their updates depend on."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for copy in copies:
        groups[tuple(each.get(copy) for each in sources)].append(copy)
    return list(groups.values())


def replicas(placement: Placement) -> Replicas:
    """Return the replicas of a placement, found once."""
    return placement.cached(Replicas)
