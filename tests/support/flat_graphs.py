"""GraphDefs with functions, written by hand, and flat graphs in a form that tests can compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from placement_checks.graph.flatten import FlatGraph, flatten

FLOAT = tf.float32.as_datatype_enum


class Flat(NamedTuple):
    """A node of a flat graph."""

    type: str
    inputs: Sequence[str]
    device: str = ""


def node(
    name: str,
    type: str,
    *inputs: str,
    device: str = "",
    bound: Sequence[str] = (),
    **functions: str,
) -> Any:
    """A node of one dtype; ``functions`` are its attributes that name functions."""
    made = node_def_pb2.NodeDef(name=name, op=type, input=inputs, device=device)
    if type == "AddN":
        made.attr["N"].i = len([source for source in inputs if not source.startswith("^")])
    if type in ("PartitionedCall", "StatefulPartitionedCall"):
        made.attr["Tout"].list.type.append(FLOAT)
    if bound:
        made.attr["_class"].list.s.extend(b"loc:@" + each.encode() for each in bound)
    for key, function in functions.items():
        made.attr[key].func.name = function
    return made


def function(
    name: str,
    arguments: Sequence[str],
    nodes: Sequence[Any],
    results: Mapping[str, str],
    runs: Sequence[str] = (),
) -> Any:
    """A function; ``runs`` are the ops that it runs in addition to the ops of its results."""
    made = function_pb2.FunctionDef(node_def=nodes, ret=results)
    made.signature.name = name
    for each in arguments:
        made.signature.input_arg.add(name=each, type=FLOAT)
    for each in results:
        made.signature.output_arg.add(name=each, type=FLOAT)
    made.signature.control_output.extend(runs)
    made.control_ret.update({each: each for each in runs})
    return made


def graph(nodes: Sequence[Any], *functions: Any) -> Any:
    made = graph_pb2.GraphDef(node=nodes)
    made.library.function.extend(functions)
    return made


def flattened(
    graph_def: Any,
    steps: Sequence[str] = (),
    placeholders: Mapping[str, Sequence[str]] | None = None,
) -> FlatGraph:
    """The flat graph; ``steps`` are the functions that contain a step."""
    named = placeholders or {}
    return flatten(graph_def, lambda name: name in steps, lambda name: named.get(name, ()))


def nodes_of(flat: FlatGraph) -> Mapping[str, Flat]:
    return {
        each.name: Flat(each.op, tuple(each.input), each.device) for each in flat.graph_def.node
    }
