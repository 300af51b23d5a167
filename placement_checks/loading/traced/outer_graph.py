"""A graph that calls the training steps of a program, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from placement_checks.core.op_types import FUNCTION_CALL, PLACEHOLDER
from placement_checks.loading.tf_internals.distribution import specs_of_replicas
from placement_checks.loading.tf_internals.traced_functions import traced_functions
from placement_checks.loading.traced.calls import SeenCall
from placement_checks.loading.traced.flattening import TracedOp
from placement_checks.util.text import free_name


class Result(NamedTuple):
    """What a step returns: Python's tensor, and the call's output in the graph around."""

    tensor: Any
    output: str


class OuterGraph(NamedTuple):
    """A graph that calls steps.

    Attributes:
        graph_def: its ``GraphDef``: a placeholder for each argument, and a call for each step.
        graphs: Python's graphs of the steps and of what they call, by the names of functions.
        arguments: what each placeholder stands for.
        given: the placeholders of what the steps are given, but for variables and iterators.
        inputs: those of each replica; empty where replicas share them.
        origins: which argument of which function each placeholder is.
        calls: the names of the calls, those of the user's functions.
        results: what the steps return.
    """

    graph_def: Any
    graphs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    given: Sequence[str]
    inputs: Sequence[Sequence[str]]
    origins: Mapping[str, TracedOp]
    calls: Sequence[str]
    results: Sequence[Result]


def outer_graph(steps: Sequence[SeenCall]) -> OuterGraph:
    """The graph that calls some steps; what several of them capture has one placeholder."""
    graph_def = GraphDef()
    functions: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    given: list[str] = []
    inputs: defaultdict[int, list[str]] = defaultdict(list)
    origins: dict[str, TracedOp] = {}
    placeholders: dict[int, str] = {}  # of what is captured, by its id
    calls: list[str] = []
    results: list[Result] = []
    for step in steps:
        definition = step.function.function_def
        name = definition.signature.name
        inner = step.graph.as_graph_def()
        graph_def.versions.CopyFrom(inner.versions)
        functions |= {each.signature.name: each for each in [*inner.library.function, definition]}
        values = [*step.given, *step.captured]
        replicas = [*_replicas(step), *[None] * len(step.captured)]
        sources = []
        for tensor, value, replica in zip(step.graph.inputs, values, replicas, strict=True):
            if id(value) not in placeholders:
                source = placeholders[id(value)] = free_name(tensor.op.name, arguments)
                arguments[source] = value
                origins[source] = TracedOp(name, tensor.op.name)
                node = graph_def.node.add(name=source, op=PLACEHOLDER)
                node.attr["dtype"].type = tensor.dtype.as_datatype_enum
                node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
            source = placeholders[id(value)]
            sources.append(source)
            if len(sources) <= len(step.given) and value.dtype not in (tf.resource, tf.variant):
                given.append(source)
                if replica is not None:
                    inputs[replica].append(f"{source}:0")
        call = free_name(step.graph.name, {*calls, *arguments})
        calls.append(call)
        node = graph_def.node.add(name=call, op=FUNCTION_CALL, input=sources)
        node.attr["f"].func.name = name
        results += [
            Result(tensor, f"{call}:{index}") for index, tensor in enumerate(step.graph.outputs)
        ]
    graph_def.library.function.extend(functions.values())
    groups = [inputs[replica] for replica in sorted(inputs)]
    graphs = {name: graph for step in steps for name, graph in graphs_of(step).items()}
    return OuterGraph(graph_def, graphs, arguments, given, groups, origins, calls, results)


def graphs_of(step: SeenCall) -> Mapping[str, Any]:
    """Python's graphs of a step and of the functions that it calls, by name."""
    found = {step.function.function_def.signature.name: step.graph}
    waiting = [step.graph]
    while waiting:
        for name, body in traced_functions(waiting.pop()).items():
            if name not in found:
                found[name] = body
                waiting.append(body)
    return found


def _replicas(step: SeenCall) -> Sequence[int | None]:
    """The replica that each tensor which a step is given is for; None for all."""
    found = list(_of_leaves(step.function.structured_input_signature))
    return found if len(found) == len(step.given) else [None] * len(step.given)


def _of_leaves(signature: Any) -> Iterator[int | None]:
    for leaf in tf.nest.flatten(signature):
        of_replicas = specs_of_replicas(leaf)
        for replica, spec in enumerate(of_replicas or [leaf]):
            parts = tf.nest.flatten(spec, expand_composites=True)
            if any(isinstance(part, tf.TypeSpec) for part in parts):
                yield from [replica if of_replicas else None] * len(parts)
