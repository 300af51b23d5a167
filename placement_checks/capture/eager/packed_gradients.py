"""Splits the all-reduce of packed gradients into one all-reduce for each gradient.

A strategy concatenates the gradients of a replica, all-reduces the vector over the replicas, and
splits the result (distribute/cross_device_ops.py and cross_device_utils.py in TensorFlow). Data
flow in such a graph leads from every gradient to every variable. With a collective for each
gradient, the result is the same, and data flow leads from a gradient to its variable only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from placement_checks.core.op_types import (
    COLLECTIVE_REDUCE,
    CONST,
    CUT,
    IDENTITY,
    JOIN,
    NCCL_REDUCE,
    PROD,
    SHAPE_ONLY,
    STACK,
)
from placement_checks.core.placement import producer_of, tensor_name
from placement_checks.graph.edits import redirect
from placement_checks.graph.graph_def import constant, constant_int

_SHAPE_OPS = SHAPE_ONLY | {CONST, PROD, STACK}
_GROUP, _INSTANCE = 2, 3  # the inputs of a collective for its group key and its instance key
_PART_STRIDE = 1 << 16  # between the new group keys; TensorFlow's own keys are smaller


class _Packed(NamedTuple):
    """A vector of gradients that one collective reduces."""

    collective: Any  # the collective op
    parts: Sequence[str]  # the tensors that are concatenated
    cut: str  # the name of the op that splits the result
    # The names of the ops from the concatenation to the split, both included.
    between: Sequence[str]


def split_packed_sums(graph_def: Any, is_packing: Callable[[str], bool]) -> Mapping[str, str]:
    """Replace collectives of packed gradients by collectives of single gradients, in place.

    A group of collectives is only split if all its members can be split, and if the keys of all
    collectives are constants. The new collectives run one after the other. Ops that waited for
    the old collective wait for the last new one.

    Args:
        graph_def: modified in place.
        is_packing: returns whether a strategy created the op of a name. A program may also
            concatenate and split tensors, but at different positions.

    Returns:
        The op that produces the gradient of each new collective, by the name of the collective.
    """
    nodes = {node.name: node for node in graph_def.node}
    by_group: defaultdict[object, list[_Packed]] = defaultdict(list)
    for pack in _find_packs(nodes):
        if is_packing(pack.cut):
            by_group[_group_key(pack.collective, nodes)].append(pack)
    collectives = (node for node in nodes.values() if node.op in (COLLECTIVE_REDUCE, NCCL_REDUCE))
    sizes = Counter(_group_key(node, nodes) for node in collectives)
    if None in sizes:
        return {}
    split = _Split(nodes)
    for group, members in by_group.items():
        lengths = {len(member.parts) for member in members}
        if len(members) == sizes[group] and len(lengths) == 1:
            for member in members:
                split.add(member)
    split.apply(graph_def)
    return split.part_of


class _Split:
    """The collectives of single gradients, and the ops that they replace."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self.part_of: dict[str, str] = {}  # the op that produces the gradient of each collective
        self._new_nodes: dict[str, list[Any]] = {}  # by the collective that they replace
        self._tensors: dict[str, str] = {}  # the new tensor for each output of a removed split
        self._removed_inputs: list[str] = []
        self._last: dict[str, str] = {}  # by removed op: the last collective that replaces it

    def add(self, pack: _Packed) -> None:
        new_nodes = self._new_nodes.setdefault(pack.collective.name, [])
        before = ""
        for number, part in enumerate(pack.parts):
            alone = NodeDef()
            alone.CopyFrom(pack.collective)
            alone.name = f"{pack.collective.name}/part_{number}"
            alone.input[0] = part
            if before:
                alone.input.append(f"^{before}")
            new_nodes += _with_key(alone, number, self._nodes)
            before = alone.name
            self.part_of[alone.name] = producer_of(part)
            self._tensors[tensor_name(pack.cut, number)] = alone.name
        self._removed_inputs += [
            source for node in pack.between for source in self._nodes[node].input
        ]
        self._last.update(dict.fromkeys(pack.between, before))

    def apply(self, graph_def: Any) -> None:
        """Insert the new collectives into a graph, and remove the old ops."""
        if not self._new_nodes:
            return
        nodes: list[Any] = []
        for node in graph_def.node:
            nodes += self._new_nodes.get(node.name, ())
            if node.name not in self._last:
                nodes.append(node)
        redirect(nodes, self._tensors, self._last)
        unused = _find_unused(nodes, self._removed_inputs)
        del graph_def.node[:]
        graph_def.node.extend(node for node in nodes if node.name not in unused)


def _find_packs(nodes: Mapping[str, Any]) -> Iterator[_Packed]:
    """Find the vectors that are concatenated, reduced by one collective and split again."""
    uses = Counter(
        producer_of(source)
        for node in nodes.values()
        for source in node.input
        if not source.startswith("^")
    )
    for cut in nodes.values():
        if cut.op != CUT or (number := cut.attr["num_split"].i) < 2:
            continue
        between, collectives = [str(cut.name)], list[Any]()
        node = nodes[producer_of(cut.input[0])]
        while uses[node.name] < 2:
            between.append(node.name)
            if node.op == JOIN and node.attr["N"].i == number:
                if len(collectives) == 1:
                    yield _Packed(collectives[0], node.input[:number], cut.name, between)
                break
            if node.op in (COLLECTIVE_REDUCE, NCCL_REDUCE):
                collectives.append(node)
            elif not _is_passthrough(node):
                break
            node = nodes[producer_of(node.input[0])]


def _is_passthrough(node: Any) -> bool:
    """Whether an op returns its only input unchanged."""
    counted = {JOIN: "N", CUT: "num_split"}.get(node.op)
    return node.op == IDENTITY or (counted is not None and bool(node.attr[counted].i == 1))


def _group_key(collective: Any, nodes: Mapping[str, Any]) -> object:
    """The key that the collectives of a group share; None if it is not a constant."""
    if collective.op == NCCL_REDUCE:
        return collective.attr["shared_name"].s
    keys = tuple(
        constant_int(source, nodes) for source in collective.input[_GROUP : _INSTANCE + 1]
    )
    return None if None in keys else keys


def _with_key(collective: Any, part: int, nodes: Mapping[str, Any]) -> Iterator[Any]:
    """Give a collective its own key; yields the constant of the key, and the collective.

    The key depends only on the old key and the number of the part. So the graphs of workers, which
    are processed separately, get the same keys.
    """
    if collective.op == NCCL_REDUCE:
        collective.attr["shared_name"].s += f"/{part}".encode()
    else:
        devices = constant_int(collective.input[_GROUP], nodes) or 0
        number = devices + part * _PART_STRIDE
        key = constant(f"{collective.name}/key", np.int32(number), collective.device)
        collective.input[_GROUP] = key.name
        yield key
    yield collective


def _find_unused(nodes: Sequence[Any], sources: Iterable[str]) -> set[str]:
    """Find shape computations that only the removed ops used, given the inputs of these ops."""
    by_name = {node.name: node for node in nodes}
    uses = Counter(producer_of(source) for node in nodes for source in node.input)
    waiting, found = [producer_of(source) for source in sources], set()
    while waiting:
        name = waiting.pop()
        if name in by_name and not uses[name] and by_name[name].op in _SHAPE_OPS:
            found.add(name)
            inputs = [producer_of(source) for source in by_name.pop(name).input]
            uses.subtract(inputs)
            waiting += inputs
    return found
