"""Images laid out as GPUs like them, channels first, for kernels of CPUs that take them last.

Such an op is given transposed images, and what it yields is transposed back under its old name, so
that the rest of the graph is as it was.

Sums in place of collectives, which CPU devices that stand in for GPUs cannot all run.

In a session a collective waits for the other devices of its group, without end where one of them
does not come, and what NCCL adds up has no kernel on CPUs. A sum, which each device then takes,
yields the same.

Which ops of a program need not run, since what they yield is fed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.errors import CannotRun
from placement_checks.core.op_types import (
    ADD_N,
    COLLECTIVE_GATHER,
    COLLECTIVE_GATHER_V1,
    COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_V1,
    COLLECTIVES,
    CONST,
    DIVISION,
    HAS_VALUE,
    IDENTITY,
    JOIN,
    NCCL_REDUCE,
    OPTIONAL_ELEMENT,
    TWO_WAY_BRANCHES,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.graph.flatten import flatten, renamed
from placement_checks.graph.graph_def import whole_number
from placement_checks.util.text import plural

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class _Images(NamedTuple):
    """Which inputs of an op are images, which are shapes of images, and whether it yields one."""

    inputs: tuple[int, ...]
    shapes: tuple[int, ...] = ()
    yields: bool = True


# The ops whose CPU kernels take NHWC alone (core/kernels).
_IMAGE_OPS = {
    "Conv2D": _Images((0,)),
    "Conv2DBackpropInput": _Images((2,), (0,)),
    "Conv2DBackpropFilter": _Images((0, 2), yields=False),
    "DepthwiseConv2dNative": _Images((0,)),
    "DepthwiseConv2dNativeBackpropInput": _Images((2,), (0,)),
    "DepthwiseConv2dNativeBackpropFilter": _Images((0, 2), yields=False),
    "MaxPool": _Images((0,)),
    "MaxPoolGrad": _Images((0, 1, 2)),
    "AvgPool": _Images((0,)),
    "AvgPoolGrad": _Images((1,), (0,)),
}


def convert_to_channels_last(graph_def: Any) -> None:
    """Let the ops of a GraphDef take NHWC where they take NCHW; those of functions are left."""
    new_nodes = [
        new_node
        for node in graph_def.node
        if node.op in _IMAGE_OPS and node.attr["data_format"].s == b"NCHW"
        for new_node in _convert_node(node, _IMAGE_OPS[node.op])
    ]
    graph_def.node.extend(new_nodes)


def _convert_node(node: Any, images: _Images) -> Iterator[Any]:
    """Change a node, and yield those that go with it."""
    name = node.name
    last, first, axis = (f"{name}/channels_{kind}" for kind in ("last", "first", "axis"))
    # Constants that wait for an input are in the same loop as the node.
    after = f"^{producer_of(node.input[0])}"
    yield _int_constant(node, last, _TO_LAST, after)
    for number in images.inputs:
        yield _new_node(node, "Transpose", f"{name}/image_{number}", [node.input[number], last])
        node.input[number] = f"{name}/image_{number}"
    for number in images.shapes:
        yield _int_constant(node, axis, 0, after)
        inputs = [node.input[number], last, axis]
        yield _new_node(node, "GatherV2", f"{name}/shape_{number}", inputs)
        node.input[number] = f"{name}/shape_{number}"
    node.attr["data_format"].s = b"NHWC"
    for key in ("strides", "ksize", "dilations"):
        _permute(node.attr[key].list.i, 1)
    _permute(node.attr["explicit_paddings"].list.i, 2)
    if images.yields:
        node.name = f"{name}/channels_are_last"
        yield _int_constant(node, first, _TO_FIRST, after)
        yield _new_node(node, "Transpose", name, [node.name, first])


def _new_node(node: Any, op: str, name: str, inputs: Sequence[str]) -> Any:
    new_node = node_def_pb2.NodeDef(name=name, op=op, input=inputs, device=node.device)
    if op == "Transpose":
        new_node.attr["T"].type = node.attr["T"].type
        new_node.attr["Tperm"].type = tf.int32.as_datatype_enum
    else:
        for key in ("Tparams", "Tindices", "Taxis"):
            new_node.attr[key].type = tf.int32.as_datatype_enum
    return new_node


def _int_constant(node: Any, name: str, value: Any, after: str) -> Any:
    new_node = node_def_pb2.NodeDef(name=name, op="Const", input=[after], device=node.device)
    new_node.attr["dtype"].type = tf.int32.as_datatype_enum
    new_node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.array(value, np.int32)))
    return new_node


def _permute(values: Any, size: int) -> None:
    """Reorder a list that has ``size`` numbers for each dimension."""
    if len(values) == 4 * size:
        old = list(values)
        values[:] = [number for dim in _TO_LAST for number in old[dim * size :][:size]]


_SUM_ATTRIBUTES = {
    NCCL_REDUCE: ("reduction", b"sum"),
    COLLECTIVE_REDUCE: ("merge_op", b"Add"),
    COLLECTIVE_REDUCE_V1: ("merge_op", b"Add"),
}
_GATHERS = (COLLECTIVE_GATHER, COLLECTIVE_GATHER_V1)
# Where a collective has the number of its devices and its keys.
_KEYS_AS_INPUTS = (COLLECTIVE_REDUCE, COLLECTIVE_GATHER)
_KEYS_AS_ATTRIBUTES = (COLLECTIVE_REDUCE_V1, COLLECTIVE_GATHER_V1)
_MEAN = b"Div"


def replace_collectives(graph_def: Any, program: str) -> None:
    """Put one sum in the place of collectives that run together, and let each pass it on.

    Args:
        graph_def: it is changed.
        program: what it is called in reports.

    Raises:
        CannotRun: it has some that cannot be told apart, or that do something else.
    """
    _inline_gather_branches(graph_def)
    for node in _called_nodes(graph_def):
        if node.op in COLLECTIVES:
            raise _unsupported(program, node, "stands in a branch, loop or function")
    groups: defaultdict[tuple[object, ...], list[Any]] = defaultdict(list)
    members = [node for node in graph_def.node if node.op in COLLECTIVES]
    by_name = {node.name: node for node in graph_def.node} if members else {}
    for node in members:
        groups[_group_key(node, by_name, program)].append(node)
    for (size, *_), nodes in groups.items():
        if len(nodes) != size:
            times = plural(len(nodes), "time")
            raise _unsupported(
                program, nodes[0], f"waits for {size} devices, and is there {times}"
            )
        graph_def.node.extend(_replace_group(nodes))


def _inline_gather_branches(graph_def: Any) -> None:
    """Put in place of branches that join rows the side for unequal numbers, which is always right.

    A strategy so joins the rows of gradients, which are `tf.IndexedSlices`: it pads them where
    replicas have more or fewer (distribute/cross_device_utils.py, all_reduce_indexed_slices).
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    taken: dict[str, str] = {}
    sides: set[str] = set()
    for node in graph_def.node:
        if node.op in TWO_WAY_BRANCHES:
            both = [node.attr[side].func.name for side in ("then_branch", "else_branch")]
            if all(_has_gather(library[side]) for side in both):
                taken[node.name] = f"{node.name}/else"
                sides.add(both[1])
    if len(taken) < 2:  # a collective of one device is none
        return
    for node in graph_def.node:
        node.name = taken.get(node.name, node.name)
        node.input[:] = [renamed(source, taken) for source in node.input]
    flat = flatten(graph_def, sides.__contains__, lambda _: ()).graph_def
    graph_def.CopyFrom(flat)


def _has_gather(function: Any) -> bool:
    return any(node.op in _GATHERS for node in function.node_def)


def _called_nodes(graph_def: Any) -> Iterator[Any]:
    """The nodes of the functions that a graph calls; its library may hold others."""
    left = {function.signature.name: function for function in graph_def.library.function}
    waiting = [graph_def.node]
    while left and waiting:
        for node in waiting.pop():
            functions = [
                function for value in node.attr.values() for function in _function_names(value)
            ]
            for name in (node.op, *functions):
                if name in left:
                    body = left.pop(name).node_def
                    waiting.append(body)
                    yield from body


def _function_names(value: Any) -> Iterator[str]:
    """The functions that an attribute names."""
    kind = value.WhichOneof("value")
    if kind == "func":
        yield value.func.name
    elif kind == "list":
        yield from (function.name for function in value.list.func)


def _group_key(node: Any, by_name: Mapping[str, Any], program: str) -> tuple[object, ...]:
    """On how many devices a collective runs, and what tells it from others.

    Raises:
        CannotRun: that is not known, or it does something else than to add or to join.
    """
    if node.op in _SUM_ATTRIBUTES:
        attribute, adds = _SUM_ATTRIBUTES[node.op]
        if node.attr[attribute].s != adds:
            raise _unsupported(
                program, node, f"takes {node.attr[attribute].s.decode()!r}, and no sum"
            )
    if node.op == NCCL_REDUCE:
        return node.attr["num_devices"].i, node.attr["shared_name"].s
    if node.op in _KEYS_AS_ATTRIBUTES:
        keys = [node.attr[key].i for key in ("group_size", "group_key", "instance_key")]
        return keys[0], node.op, *keys[1:]
    if node.op not in _KEYS_AS_INPUTS:
        raise _unsupported(program, node, "is of a kind that nothing stands in for")
    size, *keys = (whole_number(source, by_name) for source in node.input[1:4])
    if size is None or None in keys:
        raise _unsupported(program, node, "has a key that is only known when it runs")
    return size, node.op, *keys


def _replace_group(nodes: list[Any]) -> Iterator[Any]:
    """The ops that yield what some collectives do, which then pass it on.

    They are on the device of the first. What is joined is in the order of devices
    (core/common_runtime/collective_param_resolver_local.cc).
    """
    nodes.sort(key=lambda node: Device.parse(node.device))
    dtype = nodes[0].attr["T"].type
    last = _op(nodes[0], ADD_N, dtype, [node.input[0] for node in nodes])
    if nodes[0].op in _GATHERS:
        yield (axis := _numpy_constant(nodes[0], "axis", np.int32(0)))
        last.op = JOIN
        last.input.append(axis.name)
        last.attr["Tidx"].type = axis.attr["dtype"].type
    last.attr["N"].i = len(nodes)
    yield last
    if nodes[0].attr["final_op"].s == _MEAN:
        number = np.array(len(nodes), tf.dtypes.as_dtype(dtype).as_numpy_dtype)
        yield (divisor := _numpy_constant(nodes[0], "number", number))
        yield (last := _op(nodes[0], DIVISION, dtype, [last.name, divisor.name]))
    for node in nodes:
        # What the keys wait for, an op that takes them need not wait for itself.
        has_keys = node.op in _KEYS_AS_INPUTS
        keys = [producer_of(key) for key in node.input[1:4]] if has_keys else []
        waits = [source for source in node.input if source.startswith("^")]
        waits += [f"^{key}" for key in keys]
        node.op = IDENTITY
        node.attr.clear()
        node.attr["T"].type = dtype
        node.input[:] = [last.name, *dict.fromkeys(waits)]


def _op(beside: Any, kind: str, dtype: int, inputs: Sequence[str]) -> Any:
    made = NodeDef(name=f"{beside.name}/{kind}", op=kind, device=beside.device, input=inputs)
    made.attr["T"].type = dtype
    return made


def _numpy_constant(beside: Any, name: str, value: Any) -> Any:
    made = NodeDef(name=f"{beside.name}/{name}", op=CONST, device=beside.device)
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    made.attr["dtype"].type = made.attr["value"].tensor.dtype
    return made


def _unsupported(program: str, node: Any, why: str) -> CannotRun:
    return CannotRun(f"{program} cannot run on CPU devices: {node.name} ({node.op}) {why}")


def fed_ops(placement: Placement, fed: Collection[str]) -> frozenset[str]:
    """The ops of some tensors that are fed.

    Also the next element of an iterator that is fed where it is opened, and what asks whether
    there is one. A function waits for these in any case, as it waits for all that it does.
    """
    flow = analyse(placement).flow
    ops = {producer_of(tensor) for tensor in fed}
    for element in flow.having(OPTIONAL_ELEMENT.__eq__):
        takers = {flow.names[taker] for taker in flow.consumers[element]}
        asks = {name for name in takers if placement.ops[name].type == HAS_VALUE}
        if takers - asks and takers - asks <= ops:
            ops |= {flow.names[element], *asks}
    return frozenset(ops)


def remove_fed_dependencies(graph_def: Any, ops: Collection[str]) -> None:
    """Let nothing wait for ops whose values are fed, and iterators that are have a next element.

    TensorFlow runs an op that is fed if another waits for it by a control edge, unless it is a
    placeholder (core/graph/subgraph.cc), and a queue that nothing fills is waited for in vain.
    """
    waits = {f"^{op}" for op in ops}
    for node in graph_def.node:
        if node.op == HAS_VALUE and node.name in ops:
            _replace_with_true(node)
        if not waits.isdisjoint(node.input):
            node.input[:] = [source for source in node.input if source not in waits]


def _replace_with_true(node: Any) -> None:
    node.op = CONST
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = tf.bool.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(True))
