"""Takes sums of many gradients apart, so that each gradient has a sum of its own.

A strategy joins the gradients of a replica to one vector, lets one collective op add that up over
the replicas, and cuts the sum up again (distribute/cross_device_ops.py and
cross_device_utils.py). Followed from op to op, each variable would be updated by the gradients of
all of them. A collective for each gradient adds up the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
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
from placement_checks.core.placement import producer_of
from placement_checks.graph.flatten import rename_colocation
from placement_checks.graph.graph_def import constant_int

_OF_SIZES = SHAPE_ONLY | {CONST, PROD, STACK}
_GROUP, _INSTANCE = 2, 3  # which input of a collective is the key of its devices, and its own
_PARTS = 1 << 16  # by which the keys of devices differ: below are those that TensorFlow counts


class _Packed(NamedTuple):
    """A vector of gradients that one collective adds up.

    Attributes:
        collective: the op.
        parts: the tensors that are joined.
        cut: the op that cuts the sum up.
        between: what leads from the parts to the cut, both ends among them.
    """

    collective: Any
    parts: Sequence[str]
    cut: str
    between: Sequence[str]


def take_sums_apart(graph_def: Any, is_packing: Callable[[str], bool]) -> Mapping[str, str]:
    """Put collectives of single gradients in the place of those of many.

    They run one after the other, and what waits for the one waits for the last of them.

    Args:
        graph_def: it is changed, where all ops that add up together can be taken apart, and the
            keys of all are known.
        is_packing: whether a strategy has made an op, which cuts up what it has joined; a program
            may cut its own elsewhere than where it was joined.

    Returns:
        The op that joins the gradient of each new one, by the name of the new one.
    """
    nodes = {node.name: node for node in graph_def.node}
    together: defaultdict[object, list[_Packed]] = defaultdict(list)
    for pack in _packs(nodes):
        if is_packing(pack.cut):
            together[_group(pack.collective, nodes)].append(pack)
    sizes = _sizes(nodes)
    if None in sizes:
        return {}
    apart = _Apart(nodes)
    for group, members in together.items():
        lengths = {len(member.parts) for member in members}
        if len(members) == sizes[group] and len(lengths) == 1:
            for member in members:
                apart.add(member)
    apart.put_into(graph_def)
    return apart.part_of


class _Apart:
    """Collectives of single gradients, and what they take the place of.

    Attributes:
        part_of: the op whose value each of them adds up.
    """

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self.part_of: dict[str, str] = {}
        self._made: dict[str, list[Any]] = {}  # by the collective of which they take the place
        self._tensors: dict[str, str] = {}
        self._gone: set[str] = set()
        self._taken: list[str] = []  # by what is gone
        self._last: dict[str, str] = {}  # by the ops that are gone, what they end with

    def add(self, pack: _Packed) -> None:
        """Take one apart."""
        made = self._made.setdefault(pack.collective.name, [])
        before = ""
        for number, part in enumerate(pack.parts):
            alone = NodeDef()
            alone.CopyFrom(pack.collective)
            alone.name = f"{pack.collective.name}/part_{number}"
            alone.input[0] = part
            if before:
                alone.input.append(f"^{before}")
            made += _with_key(alone, number, self._nodes)
            before = alone.name
            self.part_of[alone.name] = producer_of(part)
            self._tensors[f"{pack.cut}:{number}" if number else pack.cut] = alone.name
        self._gone.update(pack.between)
        self._taken += [source for node in pack.between for source in self._nodes[node].input]
        self._last.update(dict.fromkeys(pack.between, before))

    def put_into(self, graph_def: Any) -> None:
        """Put them into a graph."""
        if not self._made:
            return
        nodes: list[Any] = []
        for node in graph_def.node:
            nodes += self._made.get(node.name, ())
            if node.name not in self._gone:
                nodes.append(node)
        for node in nodes:
            node.input[:] = map(self._instead, node.input)
            rename_colocation(node, self._last)
        left_over = _left_over(nodes, self._taken)
        del graph_def.node[:]
        graph_def.node.extend(node for node in nodes if node.name not in left_over)

    def _instead(self, source: str) -> str:
        if source.startswith("^") and source[1:] in self._last:
            return f"^{self._last[source[1:]]}"
        return self._tensors.get(source, source)


def _packs(nodes: Mapping[str, Any]) -> Iterator[_Packed]:
    """The vectors of gradients that are joined, added up by one collective and cut up again."""
    taken_whole = _taken_whole(nodes)
    for cut in nodes.values():
        if cut.op != CUT or (number := cut.attr["num_split"].i) < 2:
            continue
        between, collectives = [str(cut.name)], list[Any]()
        node = nodes[producer_of(cut.input[0])]
        while node.name not in taken_whole:
            between.append(node.name)
            if node.op == JOIN and node.attr["N"].i == number:
                if len(collectives) == 1:
                    yield _Packed(collectives[0], node.input[:number], cut.name, between)
                break
            if node.op in (COLLECTIVE_REDUCE, NCCL_REDUCE):
                collectives.append(node)
            elif not _passes_one(node):
                break
            node = nodes[producer_of(node.input[0])]


def _passes_one(node: Any) -> bool:
    """Whether an op passes one tensor on as it is."""
    counted = {JOIN: "N", CUT: "num_split"}.get(node.op)
    return node.op == IDENTITY or (counted is not None and bool(node.attr[counted].i == 1))


def _taken_whole(nodes: Mapping[str, Any]) -> set[str]:
    """The ops whose values several others take."""
    seen: set[str] = set()
    several: set[str] = set()
    for node in nodes.values():
        for source in node.input:
            if not source.startswith("^"):
                name = producer_of(source)
                (several if name in seen else seen).add(name)
    return several


def _group(collective: Any, nodes: Mapping[str, Any]) -> object:
    """What the collectives that add up together share; None where it is not known."""
    if collective.op == NCCL_REDUCE:
        return collective.attr["shared_name"].s
    keys = tuple(
        constant_int(source, nodes) for source in collective.input[_GROUP : _INSTANCE + 1]
    )
    return None if None in keys else keys


def _sizes(nodes: Mapping[str, Any]) -> Mapping[object, int]:
    """How many collectives there are of each group."""
    sizes: defaultdict[object, int] = defaultdict(int)
    for node in nodes.values():
        if node.op in (COLLECTIVE_REDUCE, NCCL_REDUCE):
            sizes[_group(node, nodes)] += 1
    return sizes


def _with_key(collective: Any, part: int, nodes: Mapping[str, Any]) -> Iterator[Any]:
    """A collective with a key of its own, after the op that yields it.

    The key follows from that of the whole and the part, so that workers, each of which has a graph
    of its own, have the same.
    """
    if collective.op == NCCL_REDUCE:
        collective.attr["shared_name"].s += f"/{part}".encode()
    else:
        devices = constant_int(collective.input[_GROUP], nodes) or 0
        key = NodeDef(name=f"{collective.name}/key", op=CONST, device=collective.device)
        tensor = tf.make_tensor_proto(devices + part * _PARTS, tf.int32)
        key.attr["value"].tensor.CopyFrom(tensor)
        key.attr["dtype"].type = tensor.dtype
        collective.input[_GROUP] = key.name
        yield key
    yield collective


def _left_over(nodes: Sequence[Any], sources: Iterable[str]) -> set[str]:
    """The ops that only served what is gone, such as the sizes of what was cut up.

    Args:
        nodes: of the graph.
        sources: what it took that is gone.
    """
    by_name = {node.name: node for node in nodes}
    takers = Counter(producer_of(source) for node in nodes for source in node.input)
    waiting, found = [producer_of(source) for source in sources], set()
    while waiting:
        name = waiting.pop()
        if name in by_name and not takers[name] and by_name[name].op in _OF_SIZES:
            found.add(name)
            taken = [producer_of(source) for source in by_name.pop(name).input]
            takers.subtract(taken)
            waiting += taken
    return found
