"""A GraphDef, from a live graph or a file, read into a `Placement` of what was requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import GLOBAL, TRAINABLE, Op, Placement, StepOps
from placement_checks.core.strategies import Strategy
from placement_checks.core.variables import Variable, Variables
from placement_checks.loading.details import GraphDetails
from placement_checks.loading.function_bodies import check_calls, nested_ops
from placement_checks.loading.gradient_notes import GradientNotes
from placement_checks.loading.graph_strategy import strategy_of_graph
from placement_checks.loading.origins import BodyOp, LiveGraph, Origin
from placement_checks.util.garbage import gc_paused


@dataclass
class GraphSource:
    """A graph to be placed, with all that is known of it.

    Attributes:
        program: what it is called in reports.
        graph_def: its ``GraphDef``.
        collections: names of variables, without ``:0``, by collection.
        origin: where it came from.
        step_ops: what is known of its training step.
        strategy: the strategy that made it for several replicas; None where none is known to.
    """

    program: str
    graph_def: Any
    collections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    step_ops: StepOps = field(default_factory=StepOps)
    strategy: Strategy | None = None

    @property
    def live(self) -> tf.Graph | None:
        """The ``tf.Graph`` of this process that it is; None for another."""
        return self.origin.graph if isinstance(self.origin, LiveGraph) else None


def from_live_graph(
    graph: tf.Graph,
    program: str,
    folder: Path | None = None,
    gradients: GradientNotes | None = None,
) -> GraphSource:
    """Read a live graph; ``gradients`` are the notes that were taken while it was built.

    Raises:
        InputError: it is larger than a GraphDef may be.
    """
    try:
        graph_def = graph.as_graph_def()
    except (DecodeError, ValueError, tf.errors.OpError):  # by version; nothing else can fail
        raise InputError(
            program,
            "its graph is larger than the 2 GB that a GraphDef may have",
            "feed large arrays through placeholders or variables instead of constants",
        ) from None
    collections = {
        key: tuple(name_of(variable.name) for variable in graph.get_collection(key))
        for key in (GLOBAL, TRAINABLE)
    }
    step_ops = StepOps(
        train_ops=_collected(graph, tf.compat.v1.GraphKeys.TRAIN_OP),
        update_ops=_collected(graph, tf.compat.v1.GraphKeys.UPDATE_OPS),
        counters=_collected(graph, tf.compat.v1.GraphKeys.GLOBAL_STEP),
        objectives=gradients.objectives if gradients else (),
        gradients=gradients.gradients if gradients else {},
        taken=gradients.taken if gradients else {},
        backward=gradients.ops(graph_def) if gradients else None,
    )
    origin = LiveGraph(graph, [node.name for node in graph_def.node], folder)
    strategy = strategy_of_graph(graph)
    return GraphSource(program, graph_def, collections, origin, step_ops, strategy)


def _collected(graph: tf.Graph, key: str) -> tuple[str, ...]:
    """The names of the ops in a collection; what has no name, such as a callable, is left out."""
    items = graph.get_collection(key)
    return tuple(
        name_of(item.name) for item in items if isinstance(getattr(item, "name", None), str)
    )


@gc_paused()
def requested(source: GraphSource) -> Placement:
    """The placement that a graph requests; none of its ops is assigned.

    Raises:
        InputError: an op has no name of its own, requests a device whose name cannot be read, or
            is a variable of an unknown dtype; or calls of functions cannot be inlined.
    """
    ops: dict[str, Op] = {}
    variables: list[Variable] = []
    device_of = partial(_device, source)
    devices: dict[str, Device] = {}  # few names, which many ops share
    for node in source.graph_def.node:
        name, kind, text, attributes = node.name, node.op, node.device, node.attr
        if not name or name in ops:
            what = f"has two ops of the name '{name}'" if name else "has an op without a name"
            raise InputError(
                source.program, what, "write it again: TensorFlow writes no such graph"
            )
        if text not in devices:
            devices[text] = device_of(text, name)
        colocated = _colocated(attributes["_class"].list.s, name) if "_class" in attributes else ()
        ops[name] = Op(name, kind, devices[text], tuple(node.input[:]), None, colocated)
        if kind in VARIABLES:
            variables.append(_variable(node, source.program))
    details = GraphDetails(source.graph_def, source.origin, list(ops))
    check_calls(source.graph_def, source.program)
    for op, function, inner in nested_ops(source.graph_def, ops, device_of):
        if op.name not in ops:
            ops[op.name] = op
            details.bodies[op.name] = BodyOp(function, inner)
    return Placement(
        source.program,
        ops,
        Variables(variables),
        source.collections,
        step=source.step_ops,
        strategy=source.strategy,
        details=details,
    )


def name_of(tensor: str) -> str:
    """The name of a variable without ``:0``."""
    return tensor.partition(":")[0]


def _device(source: GraphSource, text: str, op: str) -> Device:
    """The device that an op requests."""
    try:
        return Device.parse(text)
    except InputError as error:
        where = next(map(str, source.origin.frames(op, None)), "")
        raise InputError(
            source.program,
            f"op '{op}'{where and f' ({where})'} asks for the device {error.object}, "
            f"and {error.message}",
            error.fix,
        ) from None


def _variable(node: Any, program: str) -> Variable:
    number = node.attr["dtype"].type
    try:
        dtype = tf.dtypes.as_dtype(number).base_dtype.name
    except TypeError:
        raise InputError(
            program,
            f"its variable '{node.name}' is of the dtype {number}, which TensorFlow "
            f"{tf.__version__} does not know",
            "read it with the version that wrote it, or write it again",
        ) from None
    shape = node.attr["shape"].shape
    dims = (
        None if shape.unknown_rank else tuple(d.size if d.size >= 0 else None for d in shape.dim)
    )
    return Variable(node.name, dtype, dims)


def _colocated(classes: Iterable[bytes], own: str) -> tuple[str, ...]:
    """The ops of ``loc:@…`` entries; every variable is in a group named after itself."""
    names = [entry.decode(errors="replace").removeprefix("loc:@") for entry in classes]
    return tuple([name for name in names if name != own])
