"""Data flow: the inputs and consumers of each op, and the order of execution in a step.

Ops are numbers and sets of towers are bit masks, so that large graphs are analyzed quickly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import TypeVar, cast

from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    BRANCHES,
    GRADIENT_OUTPUTS,
    IDENTITY_N,
    ITERATOR_INITIALIZERS,
    PASSES_HANDLE,
    PIPELINE_OUTPUTS,
    SHAPE_ONLY,
    VARIABLE_READS,
    holds_state,
)
from placement_checks.core.placement import Placement, producer_of

Edges = Sequence[Sequence[OpId]]
Mask = TypeVar("Mask", bound=int)
Node = TypeVar("Node", bound=Hashable)
_WRITES_NOTHING = PASSES_HANDLE | VARIABLE_READS | PIPELINE_OUTPUTS | GRADIENT_OUTPUTS


class DataFlow:
    """The edges of a graph. The number of an op is its index in creation order.

    Attributes:
        ops: the numbers of all ops.
        names, types: the name and the type of each op.
        number: the number of each op, by name.
        variables: the ops of the program's variables. Variable ops in function bodies are left
            out: two calls of a function may have two ops for the same variable.
        inputs: for each op, the ops that compute its input values, in order. The inputs of a call
            include the ops of the function body. If an op reads only the shape of an input, this
            input is one of the control inputs instead.
        control_inputs: for each op, the ops that it waits for without using their values: the
            sources of control edges, inputs whose shape alone is read, `IdentityN` ops, and the
            keys of collectives.
        callers: for each op of a function body, the op that calls the function.
        calls: the calls of functions with a known body.
    """

    def __init__(self, placement: Placement) -> None:
        ops = placement.ops
        self.names = list(ops)
        self.types = [op.type for op in ops.values()]
        self.ops = cast(Sequence[OpId], range(len(ops)))
        self.number = dict(zip(self.names, self.ops, strict=True))
        self.variables = frozenset(self.known_ops(each.name for each in placement.variables))
        self.inputs: list[list[OpId]] = []
        self.control_inputs: dict[OpId, list[OpId]] = {}
        number = self.number
        for here, op in zip(self.ops, ops.values(), strict=True):
            data: list[OpId] = []
            for source in op.inputs:
                producer = number.get(source)
                if producer is None:
                    producer = number.get(producer_of(source))
                    if producer is None:
                        continue
                    if source[0] == "^":
                        self.control_inputs.setdefault(here, []).append(producer)
                        continue
                data.append(producer)
            self.inputs.append(data)
        self._resolve_identity_n(placement)
        self.callers = {number[op.name]: number[op.caller] for op in ops.values() if op.caller}
        self.calls = frozenset(self.callers.values())
        for here in self.having(SHAPE_ONLY.__contains__):
            if here not in self.callers:
                self.control_inputs.setdefault(here, []).extend(self.inputs[here])
                self.inputs[here] = []
        for here, call in self.callers.items():
            self.inputs[call].append(here)
        for names in placement.collectives:
            members = [number[name] for name in names]
            reduced = [self.inputs[member][0] for member in members if self.inputs[member]]
            for member in members:  # the other inputs are keys
                self.control_inputs.setdefault(member, []).extend(self.inputs[member][1:])
                self.inputs[member] = reduced

    def _resolve_identity_n(self, placement: Placement) -> None:
        """Replace an `IdentityN` input by the op that computed the value.

        A custom gradient passes the gradients of all variables through one `IdentityN`.
        """
        passing = set(self.having(IDENTITY_N.__eq__))
        for here, op in zip(self.ops, placement.by_number, strict=True) if passing else ():
            if passing.isdisjoint(self.inputs[here]):
                continue
            sources = [source for source in op.inputs if producer_of(source) in self.number]
            data = [self._origin(source, placement) for source in sources if source[0] != "^"]
            waits = passing.intersection(self.inputs[here])
            self.control_inputs.setdefault(here, []).extend(waits)
            self.inputs[here] = data

    def _origin(self, source: str, placement: Placement) -> OpId:
        """Find the op that computes a tensor; skip `IdentityN` ops that pass it on."""
        name, _, output = source.partition(":")
        passed = placement.ops[name].inputs if self.types[self.number[name]] == IDENTITY_N else ()
        index = int(output or 0)
        if index < len(passed) and producer_of(passed[index]) in self.number:
            return self._origin(passed[index], placement)
        return self.number[name]

    def op_of(self, tensor: str) -> OpId:
        """Return the op that computes a tensor.

        Raises:
            KeyError: the graph has no such op.
        """
        return self.number[producer_of(tensor)]

    def known_ops(self, names: Iterable[str]) -> list[OpId]:
        """Return the ops for names of ops or tensors; names without an op are left out."""
        numbers = (self.number.get(producer_of(name)) for name in names)
        return [op for op in numbers if op is not None]

    @cached_property
    def all_inputs(self) -> Edges:
        """For each op its inputs and control inputs."""
        waited_for = list(self.inputs)
        for op, sources in self.control_inputs.items():
            waited_for[op] = [*self.inputs[op], *sources]
        return waited_for

    @cached_property
    def waits_for(self) -> Edges:
        """For each op the ops that run before it in a step: `all_inputs`, and what its calls need.

        TensorFlow inlines calls, so a function body may begin before all arguments are computed.
        The ops of the body wait for the control inputs of the call and, if the call is a branch,
        for the input that chooses the branch.
        """
        edges = list(self.all_inputs)
        for op, call in self.callers.items():
            outer: OpId | None = call
            while outer is not None:
                decision = self.inputs[outer][:1] if self.types[outer] in BRANCHES else []
                edges[op] = [*edges[op], *self.control_inputs.get(outer, ()), *decision]
                outer = self.callers.get(outer)
        return edges

    @cached_property
    def consumers(self) -> Edges:
        """For each op the ops that compute with its value."""
        consumers: list[list[OpId]] = [[] for _ in self.names]
        for here, producers in zip(self.ops, self.inputs, strict=True):
            for producer in producers:
                consumers[producer].append(here)
        return consumers

    def having(self, is_wanted: Callable[[str], bool]) -> list[OpId]:
        """Return the ops whose types satisfy ``is_wanted``, in creation order."""
        wanted = filter(is_wanted, self._of_type)
        return sorted(op for kind in wanted for op in self._of_type[kind])

    @cached_property
    def _of_type(self) -> Mapping[str, list[OpId]]:
        of_type: dict[str, list[OpId]] = defaultdict(list)
        for op, kind in zip(self.ops, self.types, strict=True):
            of_type[kind].append(op)
        return of_type

    def reachable(
        self,
        start: Iterable[OpId],
        along: Edges
        | Mapping[OpId, Iterable[OpId]]
        | Callable[[OpId], Iterable[OpId]]
        | None = None,
        until: Callable[[OpId], object] | None = None,
    ) -> set[OpId]:
        """Return the ops that are reachable from ``start`` along edges, including ``start``.

        Args:
            start: the ops to begin with.
            along: the edges of each op: `inputs` by default, or `consumers`, `all_inputs`, a
                mapping or a function.
            until: a condition that stops the search at an op. The result includes this op. The
                condition is evaluated once for each op.
        """
        edges = self.inputs if along is None else along
        neighbors = edges if callable(edges) else edges.__getitem__
        reached = set(start)
        todo = list(reached)
        while todo:
            op = todo.pop()
            if until is not None and until(op):
                continue
            for neighbor in neighbors(op):
                if neighbor not in reached:
                    reached.add(neighbor)
                    todo.append(neighbor)
        return reached

    def marks(self, groups: Iterable[Iterable[OpId]]) -> list[int]:
        """Return for each op a bit mask of the groups that contain it."""
        masks = [0] * len(self.names)
        for number, group in enumerate(groups):
            for op in group:
                masks[op] |= 1 << number
        return masks

    def propagate(
        self,
        masks: Sequence[Mask],
        *,
        to_inputs: bool = False,
        along: Edges | None = None,
        keep: Sequence[object] | None = None,
    ) -> list[Mask]:
        """Propagate bit masks along the edges, from each op to all ops that use its value.

        Args:
            masks: the initial bits of each op.
            to_inputs: propagate from each op to its inputs instead.
            along: for each op its inputs, or some of them; `inputs` by default.
            keep: for each op, whether it receives no bits from other ops. It still passes on its
                initial bits.

        Returns:
            For each op its initial bits, and all bits that were propagated to it.
        """
        edges = self.inputs if along is None else along
        looped = {op for here, sources in enumerate(edges) for op in sources if op > here}
        order = range(len(edges) - 1, -1, -1) if to_inputs else range(len(edges))
        result = cast(list[int], list(masks))
        again = True
        while again:
            again = False
            for here in order:
                mask = result[here]
                if not to_inputs:
                    if keep and keep[here]:
                        continue
                    for source in edges[here]:
                        mask |= result[source]
                    if mask != result[here]:
                        result[here] = mask
                        again = again or here in looped
                elif mask:
                    for source in edges[here]:
                        both = mask | result[source]
                        if both != result[source] and not (keep and keep[source]):
                            result[source] = both
                            again = again or source in looped
        return cast(list[Mask], result)

    def path(
        self,
        start: OpId,
        is_end: Callable[[OpId], bool],
        along: Callable[[OpId], Iterable[OpId]] | None = None,
    ) -> list[OpId]:
        """Return the shortest path from ``start`` to another op.

        Args:
            start: the first op of the path.
            is_end: whether an op may be the last op of the path.
            along: the edges of an op; `inputs` by default.

        Returns:
            The ops on the path, with both ends; empty if there is no path.
        """
        neighbors = self.inputs.__getitem__ if along is None else along
        before = {start: start}
        todo = [start]
        for op in todo:
            if op != start and is_end(op):
                path = [op]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return path[::-1]
            for source in neighbors(op):
                if source not in before:
                    before[source] = op
                    todo.append(source)
        return []

    @cached_property
    def writers(self) -> Mapping[OpId, list[tuple[OpId, Sequence[OpId]]]]:
        """For each variable, queue or other holder of state, the ops that change it.

        Each writer comes with the ops that compute the written values.
        """
        writers: dict[OpId, list[tuple[OpId, Sequence[OpId]]]] = defaultdict(list)
        for here, producers in zip(self.ops, self.inputs, strict=True):
            kind = self.types[here]
            if len(producers) < 2 or kind in _WRITES_NOTHING:
                continue
            into, *written = producers
            if kind in ITERATOR_INITIALIZERS:
                written, into = [into], written[0]
            holder = self.state_holder(into)
            if holder is not None:
                writers[holder].append((here, written))
        return writers

    def state_holder(self, op: OpId) -> OpId | None:
        """Return ``op`` if it holds state, or the state holder that it passes on; else None."""
        return self._state_holders.get(op)

    def first_holder(self, op: OpId) -> OpId | None:
        """Return the state holder of an op's first input, such as the variable of an update."""
        inputs = self.inputs[op]
        return self.state_holder(inputs[0]) if inputs else None

    @cached_property
    def _state_holders(self) -> Mapping[OpId, OpId]:
        holders = {op: op for op in self.having(holds_state)}
        todo = list(holders)
        for op in todo:
            for reader in self.consumers[op]:
                passes_on = self.types[reader] in PASSES_HANDLE and self.inputs[reader][0] == op
                if passes_on and reader not in holders:
                    holders[reader] = holders[op]
                    todo.append(reader)
        return holders


def union(masks: Iterable[int]) -> int:
    """Return the mask with all bits of the masks."""
    return reduce(or_, masks, 0)


def bits_of(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def connected_groups(
    nodes: Iterable[Node], pairs: Iterable[tuple[Node, Node]]
) -> list[list[Node]]:
    """Group nodes that pairs connect, directly or through other nodes.

    The groups are in the order of their first nodes, and each group keeps the order of nodes.
    """
    group_of = {node: [node] for node in nodes}
    for one, other in pairs:
        if group_of[one] is not group_of[other]:
            small, large = sorted((group_of[one], group_of[other]), key=len)
            large += small
            group_of.update(dict.fromkeys(small, large))
    groups: dict[int, list[Node]] = defaultdict(list)
    for node, group in group_of.items():
        groups[id(group)].append(node)
    return list(groups.values())
