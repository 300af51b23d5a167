"""Which op's value goes where, over numbers instead of names: fast enough for 100,000 ops.

Which ops of a training step wait for which others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from placement_checks.core.op_types import (
    BRANCHES,
    COLLECTIVES,
    GRADIENT_OUTPUTS,
    IDENTITY_N,
    ITERATOR_INITIALISERS,
    PASSES_HANDLE,
    PIPELINE_OUTPUTS,
    SHAPE_ONLY,
    VARIABLE_READS,
    holds_state,
)
from placement_checks.core.placement import Placement, producer_of

Edges = Sequence[Sequence[int]]


class DataFlow:
    """The edges of a graph. An op is a number: its place in the order of building.

    Attributes:
        names, types: of the ops, by their numbers.
        number: the numbers, by name.
        inputs: for each op the ops whose values it computes with, in the order of its inputs. A
            call computes with the ops of the function's body; the shape of a value is not a value.
        control_inputs: the ops that an op waits for without their values: by control edges, or
            because it looks at their shape alone.
        callers: for each op of a function's body the op that calls the function.
        calls: the ops of which the function's body is known.
    """

    def __init__(self, placement: Placement) -> None:
        ops = placement.ops
        self.names = list(ops)
        self.types = [op.type for op in ops.values()]
        self.number = dict(zip(self.names, range(len(ops)), strict=True))
        self.inputs: list[list[int]] = []
        self.control_inputs: dict[int, list[int]] = {}
        number = self.number
        for here, op in enumerate(ops.values()):
            data: list[int] = []
            for source in op.inputs:
                found = number.get(source)
                if found is None:
                    found = number.get(producer_of(source))
                    if found is None:
                        continue
                    if source[0] == "^":
                        self.control_inputs.setdefault(here, []).append(found)
                        continue
                data.append(found)
            self.inputs.append(data)
        self._take_one_of_several(placement)
        self.callers = {n: number[op.caller] for n, op in enumerate(ops.values()) if op.caller}
        self.calls = frozenset(self.callers.values())
        for here in self.having(SHAPE_ONLY.__contains__):
            if here not in self.callers:
                self.control_inputs.setdefault(here, []).extend(self.inputs[here])
                self.inputs[here] = []
        for here, call in self.callers.items():
            self.inputs[call].append(here)
        for members in _collectives(placement, self):
            reduced = [self.inputs[member][0] for member in members if self.inputs[member]]
            for member in members:  # its other inputs are keys, which tell it from others
                self.control_inputs.setdefault(member, []).extend(self.inputs[member][1:])
                self.inputs[member] = reduced

    def _take_one_of_several(self, placement: Placement) -> None:
        """Let what takes one of the values that an op passes on compute with that one alone.

        A custom gradient passes on the gradients of all variables together.
        """
        passing = set(self.having(IDENTITY_N.__eq__))
        for here, op in enumerate(placement.ops.values() if passing else ()):
            if passing.isdisjoint(self.inputs[here]):
                continue
            sources = [source for source in op.inputs if producer_of(source) in self.number]
            data = [self._passed_on(source, placement) for source in sources if source[0] != "^"]
            waits = passing.intersection(self.inputs[here])
            self.control_inputs.setdefault(here, []).extend(waits)
            self.inputs[here] = data

    def _passed_on(self, source: str, placement: Placement) -> int:
        """The op that a value comes from, before ops that pass on several."""
        name, _, output = source.partition(":")
        passed = placement.ops[name].inputs if self.types[self.number[name]] == IDENTITY_N else ()
        index = int(output or 0)
        if index < len(passed) and producer_of(passed[index]) in self.number:
            return self._passed_on(passed[index], placement)
        return self.number[name]

    @cached_property
    def all_inputs(self) -> Edges:
        """For each op what it computes with or waits for."""
        waited_for = list(self.inputs)
        for op, sources in self.control_inputs.items():
            waited_for[op] = [*self.inputs[op], *sources]
        return waited_for

    def having(self, is_wanted: Callable[[str], bool]) -> list[int]:
        """The ops of the types that are wanted, in their order; types are few and ops many."""
        wanted = filter(is_wanted, self._of_type)
        return sorted(op for kind in wanted for op in self._of_type[kind])

    @cached_property
    def _of_type(self) -> Mapping[str, list[int]]:
        of_type: dict[str, list[int]] = defaultdict(list)
        for op, kind in enumerate(self.types):
            of_type[kind].append(op)
        return of_type

    @cached_property
    def consumers(self) -> Edges:
        """For each op the ops that compute with its value."""
        consumers: list[list[int]] = [[] for _ in self.names]
        for here, producers in enumerate(self.inputs):
            for producer in producers:
                consumers[producer].append(here)
        return consumers

    @cached_property
    def writers(self) -> dict[int, list[tuple[int, Sequence[int]]]]:
        """The ops that change what a variable, queue or other holder of state holds.

        By the holder, each with the ops whose values it writes there.
        """
        writers: dict[int, list[tuple[int, Sequence[int]]]] = defaultdict(list)
        for here, producers in enumerate(self.inputs):
            kind = self.types[here]
            if len(producers) < 2 or kind in _WRITES_NOTHING:
                continue
            into, *written = producers
            if kind in ITERATOR_INITIALISERS:
                written, into = [into], written[0]
            holder = self.state_holder(into)
            if holder is not None:
                writers[holder].append((here, written))
        return writers

    def state_holder(self, op: int) -> int | None:
        """The holder of state that ``op`` is, or passes on; None if it is none."""
        return self._state_holders.get(op)

    @cached_property
    def _state_holders(self) -> Mapping[int, int]:
        """The holder of state, by the ops that are one or pass one on."""
        holders = {op: op for op in self.having(holds_state)}
        todo = list(holders)
        for op in todo:
            for reader in self.consumers[op]:
                passes_on = self.types[reader] in PASSES_HANDLE and self.inputs[reader][0] == op
                if passes_on and reader not in holders:
                    holders[reader] = holders[op]
                    todo.append(reader)
        return holders

    def needed_to_run(self, ops: Iterable[int]) -> bytearray:
        """For each op whether it runs when ``ops`` run: what they wait for runs as well."""
        return _behind(ops, self.all_inputs)

    def ancestors(self, ops: Iterable[int]) -> bytearray:
        """For each op whether its value reaches one of ``ops``, themselves among them."""
        return _behind(ops, self.inputs)

    def masks(self, own: Sequence[int], ends: Sequence[int] | None = None) -> list[int]:
        """For each op the bits of all ops whose values reach it, its own among them.

        Where ``ends`` is set for an op, it has its own bits alone, and passes those on.
        """
        masks = list(own)
        values = self.inputs
        again = True
        while again:  # a second time only where a loop leads backwards
            again = False
            for here, producers in enumerate(values):
                if ends and ends[here]:
                    continue
                before = mask = masks[here]
                for producer in producers:
                    mask |= masks[producer]
                if mask != before:
                    masks[here] = mask
                    again = again or here in self.looped
        return masks

    @cached_property
    def looped(self) -> set[int]:
        """The ops whose value goes to one built before them: ends of loops, and bodies."""
        return {
            producer
            for here, producers in enumerate(self.inputs)
            for producer in producers
            if producer > here
        }

    def path(
        self,
        start: int,
        found: Callable[[int], bool],
        within: Callable[[int], bool] = lambda _: True,
        *,
        control_inputs: bool = False,
    ) -> list[int]:
        """The shortest path from ``start`` back along values to an op for which ``found`` is true.

        Only ops ``within`` are entered; with ``control_inputs`` it may lead along control edges
        too. Empty if there is none.
        """
        before = {start: start}
        todo = [start]
        for op in todo:
            if op != start and found(op):
                path = [op]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return path[::-1]
            for source in (
                *self.inputs[op],
                *(self.control_inputs.get(op, ()) if control_inputs else ()),
            ):
                if source not in before and within(source):
                    before[source] = op
                    todo.append(source)
        return []

    def walk_back(self, ops: Iterable[int], enter: Callable[[int], bool]) -> Iterator[int]:
        """The ops whose values reach ``ops``, themselves among them, by way of those to enter."""
        todo = list(ops)
        seen = set(todo)
        while todo:
            op = todo.pop()
            yield op
            if not enter(op):
                continue
            for source in self.inputs[op]:
                if source not in seen:
                    seen.add(source)
                    todo.append(source)


def _behind(ops: Iterable[int], edges: Edges) -> bytearray:
    """For each op whether the edges lead back to it from one of ``ops``, themselves among them."""
    seen = bytearray(len(edges))
    todo = list(ops)
    for op in todo:
        seen[op] = 1
    while todo:
        for source in edges[todo.pop()]:
            if not seen[source]:
                seen[source] = 1
                todo.append(source)
    return seen


def _collectives(placement: Placement, flow: DataFlow) -> Iterable[list[int]]:
    """The ops that reduce or gather together, such as those of NCCL: each takes what all do."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for member in flow.having(COLLECTIVES.__contains__):
        op = placement.ops[flow.names[member]]
        attributes = placement.details.attributes(op.name)
        keys = [attributes.get(key) for key in ("shared_name", "group_key", "instance_key")]
        values = tuple(placement.details.value(producer_of(source)) for source in op.inputs[1:])
        groups[op.type, *keys, values].append(member)
    return groups.values()


_WRITES_NOTHING = PASSES_HANDLE | VARIABLE_READS | PIPELINE_OUTPUTS | GRADIENT_OUTPUTS


class StepOrder:
    """What runs in a step, and in which order it has to.

    Attributes:
        ops: of the step, each after those that it waits for, but where a loop leads back.
    """

    def __init__(self, flow: DataFlow, roots: Iterable[int]) -> None:
        self._waits_for = _with_starts(flow)
        self._nodes = _sources_first(roots, self._waits_for)
        self.ops = [op for op in self._nodes if op < len(flow.names)]

    def awaited(self, own: Mapping[int, int]) -> Sequence[int]:
        """For each op the bits of all that it waits for, its own among them."""
        masks = self._own(own)
        changed = True
        while changed:  # once more, and again where a loop leads back
            changed = False
            for here in self._nodes:
                mask = masks[here]
                for source in self._waits_for[here]:
                    mask |= masks[source]
                if mask != masks[here]:
                    masks[here] = mask
                    changed = True
        return masks

    def waiting(self, own: Mapping[int, int]) -> Sequence[int]:
        """For each op the bits of all that wait for it, its own among them."""
        masks = self._own(own)
        changed = True
        while changed:
            changed = False
            for here in reversed(self._nodes):
                mask = masks[here]
                for source in self._waits_for[here] if mask else ():
                    if mask | masks[source] != masks[source]:
                        masks[source] |= mask
                        changed = True
        return masks

    def _own(self, own: Mapping[int, int]) -> list[int]:
        masks = [0] * len(self._waits_for)
        for op, bits in own.items():
            masks[op] = bits
        return masks


def _with_starts(flow: DataFlow) -> Edges:
    """What each op waits for. A call has a start besides, which the ops of its body wait for.

    A body begins before all values that it computes with are there, since TensorFlow inlines
    calls: it waits for what is ordered before the call, and for what decides on a branch.
    """
    edges = list(flow.all_inputs)
    start_of = {call: len(edges) + number for number, call in enumerate(sorted(flow.calls))}
    edges += ([*_starts_after(flow, call)] for call in start_of)
    for op, call in flow.callers.items():
        edges[op] = [*edges[op], start_of[call]]
    for call, start in start_of.items():
        if call in flow.callers:
            edges[start] = [*edges[start], start_of[flow.callers[call]]]
    return edges


def _starts_after(flow: DataFlow, call: int) -> Iterator[int]:
    yield from flow.control_inputs.get(call, ())
    if flow.types[call] in BRANCHES:
        yield from flow.inputs[call][:1]


def _sources_first(roots: Iterable[int], edges: Edges) -> list[int]:
    """All that is reached from ``roots``, each after what its edges lead to."""
    seen = bytearray(len(edges))
    ordered: list[int] = []
    for root in roots:
        if seen[root]:
            continue
        seen[root] = 1
        todo = [(root, iter(edges[root]))]
        while todo:
            here, sources = todo[-1]
            for source in sources:
                if not seen[source]:
                    seen[source] = 1
                    todo.append((source, iter(edges[source])))
                    break
            else:
                ordered.append(here)
                todo.pop()
    return ordered
