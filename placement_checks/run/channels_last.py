"""Images laid out as GPUs like them, channels first, for kernels of CPUs that take them last.

Such an op is given transposed images, and what it yields is transposed back under its old name, so
that the rest of the graph is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from placement_checks.core.placement import producer_of

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class _Images(NamedTuple):
    """Which inputs of an op are images, which are shapes of images, and whether it yields one."""

    inputs: tuple[int, ...]
    shapes: tuple[int, ...] = ()
    yields: bool = True


# The ops whose CPU kernels take NHWC alone (core/kernels).
_OPS = {
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


def channels_last(graph_def: Any) -> None:
    """Let the ops of a GraphDef take NHWC where they take NCHW; those of functions are left."""
    new_nodes = [
        new_node
        for node in graph_def.node
        if node.op in _OPS and node.attr["data_format"].s == b"NCHW"
        for new_node in _converted(node, _OPS[node.op])
    ]
    graph_def.node.extend(new_nodes)


def _converted(node: Any, images: _Images) -> Iterator[Any]:
    """Change a node, and yield those that go with it."""
    name = node.name
    last, first, axis = (f"{name}/channels_{kind}" for kind in ("last", "first", "axis"))
    # Constants that wait for an input are in the same loop as the node.
    after = f"^{producer_of(node.input[0])}"
    yield _constant(node, last, _TO_LAST, after)
    for number in images.inputs:
        yield _new_node(node, "Transpose", f"{name}/image_{number}", [node.input[number], last])
        node.input[number] = f"{name}/image_{number}"
    for number in images.shapes:
        yield _constant(node, axis, 0, after)
        inputs = [node.input[number], last, axis]
        yield _new_node(node, "GatherV2", f"{name}/shape_{number}", inputs)
        node.input[number] = f"{name}/shape_{number}"
    node.attr["data_format"].s = b"NHWC"
    for key in ("strides", "ksize", "dilations"):
        _permute(node.attr[key].list.i, 1)
    _permute(node.attr["explicit_paddings"].list.i, 2)
    if images.yields:
        node.name = f"{name}/channels_are_last"
        yield _constant(node, first, _TO_FIRST, after)
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


def _constant(node: Any, name: str, value: Any, after: str) -> Any:
    new_node = node_def_pb2.NodeDef(name=name, op="Const", input=[after], device=node.device)
    new_node.attr["dtype"].type = tf.int32.as_datatype_enum
    new_node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.array(value, np.int32)))
    return new_node


def _permute(values: Any, size: int) -> None:
    """Reorder a list that has ``size`` numbers for each dimension."""
    if len(values) == 4 * size:
        old = list(values)
        values[:] = [number for dim in _TO_LAST for number in old[dim * size :][:size]]
