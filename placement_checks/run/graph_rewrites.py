"""Rewrites of a GraphDef, so that a program for GPUs runs in a session, on given rows.

- `convert_to_channels_last`, for runs on CPU devices: most CPU kernels take images in NHWC only.
  Ops that take NCHW get transposed images, and their outputs are transposed back under the old
  name, so that the rest of the graph stays as it is.
- `replace_collectives`: collectives do not run in every session. A collective waits forever if a
  member of its group does not run, NCCL ops have no CPU kernel, and collectives on GPUs read an
  ordering token, a variable that the session lacks. The result of a group is one sum, which all
  members return instead.
- `remove_fed_dependencies`: ops with fed outputs need not run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.errors import CannotRun
from placement_checks.core.op_types import (
    ADD_N,
    COLLECTIVE_GATHER,
    COLLECTIVE_GATHER_V1,
    COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_V1,
    COLLECTIVES,
    DIVISION,
    GATHERERS,
    HAS_VALUE,
    IDENTITY,
    JOIN,
    NCCL_REDUCE,
    OPTIONAL_ELEMENT,
    TWO_WAY_BRANCHES,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.graph.edits import rename_input, rename_ops
from placement_checks.graph.flatten import flatten
from placement_checks.graph.graph_def import constant, constant_int
from placement_checks.graph.inlining import function_library, reachable_functions
from placement_checks.util.text import plural

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class _Images(NamedTuple):
    """The inputs of an op that are images or shapes of images; whether the op yields an image."""

    inputs: tuple[int, ...]
    shapes: tuple[int, ...] = ()
    yields: bool = True


# Ops with CPU kernels for NHWC only (core/kernels).
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
    "DepthToSpace": _Images((0,)),
    "SpaceToDepth": _Images((0,)),
}


def convert_to_channels_last(graph_def: Any) -> None:
    """Convert the ops of a GraphDef from NCHW to NHWC, except in bodies of functions."""
    for node in list(graph_def.node):
        if node.op in _IMAGE_OPS and node.attr["data_format"].s == b"NCHW":
            graph_def.node.extend(_convert_node(node, _IMAGE_OPS[node.op]))


def _convert_node(node: Any, images: _Images) -> Iterator[Any]:
    """Convert a node, and yield the new nodes around it."""
    name = node.name
    last, first, axis = (f"{name}/channels_{kind}" for kind in ("last", "first", "axis"))
    # A control edge from an input puts the constants into the same loop as the node.
    after = [f"^{producer_of(node.input[0])}"]
    yield constant(last, np.array(_TO_LAST, np.int32), node.device, after)
    for number in images.inputs:
        yield _new_node(node, "Transpose", f"{name}/image_{number}", [node.input[number], last])
        node.input[number] = f"{name}/image_{number}"
    for number in images.shapes:
        yield constant(axis, np.int32(0), node.device, after)
        inputs = [node.input[number], last, axis]
        yield _new_node(node, "GatherV2", f"{name}/shape_{number}", inputs)
        node.input[number] = f"{name}/shape_{number}"
    node.attr["data_format"].s = b"NHWC"
    for key in ("strides", "ksize", "dilations"):
        _permute(node.attr[key].list.i, 1)
    _permute(node.attr["explicit_paddings"].list.i, 2)
    if images.yields:
        node.name = f"{name}/channels_are_last"
        yield constant(first, np.array(_TO_FIRST, np.int32), node.device, after)
        yield _new_node(node, "Transpose", name, [node.name, first])


def _new_node(node: Any, op: str, name: str, inputs: Sequence[str]) -> Any:
    new_node = NodeDef(name=name, op=op, input=inputs, device=node.device)
    if op == "Transpose":
        new_node.attr["T"].type = node.attr["T"].type
        new_node.attr["Tperm"].type = tf.int32.as_datatype_enum
    else:
        for key in ("Tparams", "Tindices", "Taxis"):
            new_node.attr[key].type = tf.int32.as_datatype_enum
    return new_node


def _permute(values: Any, size: int) -> None:
    """Reorder a list with ``size`` numbers for each dimension."""
    if len(values) == 4 * size:
        old = list(values)
        values[:] = [number for dim in _TO_LAST for number in old[dim * size :][:size]]


_SUM_ATTRIBUTES = {
    NCCL_REDUCE: ("reduction", b"sum"),
    COLLECTIVE_REDUCE: ("merge_op", b"Add"),
    COLLECTIVE_REDUCE_V1: ("merge_op", b"Add"),
}
# Collectives with the group size and the keys as inputs, or as attributes.
_KEYS_AS_INPUTS = (COLLECTIVE_REDUCE, COLLECTIVE_GATHER)
_KEYS_AS_ATTRIBUTES = (COLLECTIVE_REDUCE_V1, COLLECTIVE_GATHER_V1)
_MEAN = b"Div"


def replace_collectives(graph_def: Any, program: str) -> None:
    """Replace each group of collectives of a graph with one sum that all members return.

    Raises:
        CannotRun: the group of a collective is unknown or incomplete, or the collective neither
            adds nor gathers.
    """
    _inline_gather_branches(graph_def)
    for function in reachable_functions(graph_def.node, function_library(graph_def)).values():
        for node in function.node_def:
            if node.op in COLLECTIVES:
                raise _unsupported(program, node, "is inside a branch, loop or function")
    groups: defaultdict[tuple[object, ...], list[Any]] = defaultdict(list)
    members = [node for node in graph_def.node if node.op in COLLECTIVES]
    by_name = {node.name: node for node in graph_def.node} if members else {}
    for node in members:
        groups[_group_key(node, by_name, program)].append(node)
    for (size, *_), nodes in groups.items():
        if len(nodes) != size:
            found = plural(len(nodes), "op")
            raise _unsupported(
                program, nodes[0], f"waits for {size} devices, but its group has {found}"
            )
        graph_def.node.extend(_replace_group(nodes))


def _inline_gather_branches(graph_def: Any) -> None:
    """Replace branches that gather rows with their else side, which is right in every case.

    A strategy gathers `tf.IndexedSlices` in such branches. The else side pads replicas that have
    fewer rows than others (distribute/cross_device_utils.py, all_reduce_indexed_slices).
    """
    library = function_library(graph_def)
    new_names: dict[str, str] = {}
    sides: set[str] = set()
    for node in graph_def.node:
        if node.op in TWO_WAY_BRANCHES:
            both = [node.attr[side].func.name for side in ("then_branch", "else_branch")]
            if all(any(each.op in GATHERERS for each in library[side].node_def) for side in both):
                new_names[node.name] = f"{node.name}/else"
                sides.add(both[1])
    if len(new_names) < 2:  # a collective needs two devices
        return
    rename_ops(graph_def.node, partial(rename_input, names=new_names))
    flat = flatten(graph_def, sides.__contains__, lambda _: ()).graph_def
    graph_def.CopyFrom(flat)


def _group_key(node: Any, by_name: Mapping[str, Any], program: str) -> tuple[object, ...]:
    """Return the size of a collective's group, and the keys that identify the group.

    Raises:
        CannotRun: a key is not known, or the collective neither adds nor gathers.
    """
    if node.op in _SUM_ATTRIBUTES:
        attribute, adds = _SUM_ATTRIBUTES[node.op]
        if node.attr[attribute].s != adds:
            raise _unsupported(
                program, node, f"reduces by {node.attr[attribute].s.decode()!r}, not by a sum"
            )
    if node.op == NCCL_REDUCE:
        return node.attr["num_devices"].i, node.attr["shared_name"].s
    if node.op in _KEYS_AS_ATTRIBUTES:
        keys = [node.attr[key].i for key in ("group_size", "group_key", "instance_key")]
        return keys[0], node.op, *keys[1:]
    if node.op not in _KEYS_AS_INPUTS:
        raise _unsupported(program, node, "is a collective that no sum replaces")
    size, *keys = (constant_int(source, by_name) for source in node.input[1:4])
    if size is None or None in keys:
        raise _unsupported(program, node, "has a group size or key that is known only at run time")
    return size, node.op, *keys


def _replace_group(nodes: list[Any]) -> Iterator[Any]:
    """Yield new nodes that compute the result of a group, and turn its members into identities.

    The new nodes are on the device of the first member. Rows are gathered in the order of devices
    (core/common_runtime/collective_param_resolver_local.cc).
    """
    nodes.sort(key=lambda node: Device.parse(node.device))
    dtype = nodes[0].attr["T"].type
    last = nodes[0].input[0]
    if len(nodes) > 1:  # a join needs two values
        joined = _op(nodes[0], ADD_N, dtype, [node.input[0] for node in nodes])
        joined.attr["N"].i = len(nodes)
        if nodes[0].op in GATHERERS:
            yield (axis := constant(f"{nodes[0].name}/axis", np.int32(0), nodes[0].device))
            joined.op = JOIN
            joined.input.append(axis.name)
            joined.attr["Tidx"].type = axis.attr["dtype"].type
        yield joined
        last = joined.name
    if nodes[0].attr["final_op"].s == _MEAN:
        number = np.array(len(nodes), tf.dtypes.as_dtype(dtype).as_numpy_dtype)
        yield (divisor := constant(f"{nodes[0].name}/number", number, nodes[0].device))
        yield (mean := _op(nodes[0], DIVISION, dtype, [last, divisor.name]))
        last = mean.name
    for node in nodes:
        # Identities have no key inputs, so they wait for the keys by control edges.
        has_keys = node.op in _KEYS_AS_INPUTS
        keys = [producer_of(key) for key in node.input[1:4]] if has_keys else []
        waits = [source for source in node.input if source.startswith("^")]
        waits += [f"^{key}" for key in keys]
        node.op = IDENTITY
        node.attr.clear()
        node.attr["T"].type = dtype
        node.input[:] = [last, *dict.fromkeys(waits)]


def _op(member: Any, kind: str, dtype: int, inputs: Sequence[str]) -> Any:
    node = NodeDef(name=f"{member.name}/{kind}", op=kind, device=member.device, input=inputs)
    node.attr["T"].type = dtype
    return node


def _unsupported(program: str, node: Any, why: str) -> CannotRun:
    return CannotRun(f"{program} cannot be run: {node.name} ({node.op}) {why}")


def fed_ops(placement: Placement, fed: Collection[str]) -> frozenset[str]:
    """Return the ops with outputs that are fed.

    If all components of an iterator's next element are fed, the result also contains the op that
    yields the element, and the ops that test whether there is a next element: a function runs
    these ops even if nothing reads the element.
    """
    flow = analyze(placement).flow
    ops = {producer_of(tensor) for tensor in fed}
    for element in flow.having(OPTIONAL_ELEMENT.__eq__):
        takers = {flow.names[taker] for taker in flow.consumers[element]}
        tests = {name for name in takers if placement.ops[name].type == HAS_VALUE}
        if takers - tests and takers - tests <= ops:
            ops |= {flow.names[element], *tests}
    return frozenset(ops)


def remove_fed_dependencies(graph_def: Any, ops: Collection[str]) -> None:
    """Remove control edges that start at fed ops; fed iterators always have a next element.

    TensorFlow runs even a fed op if a control edge starts at it, unless the op is a placeholder
    (core/graph/subgraph.cc). Such an op may wait forever for a queue that nothing fills.
    """
    waits = {f"^{op}" for op in ops}
    for node in graph_def.node:
        if node.op == HAS_VALUE and node.name in ops:
            node.CopyFrom(constant(node.name, np.bool_(True), node.device))
        if not waits.isdisjoint(node.input):
            node.input[:] = [source for source in node.input if source not in waits]
