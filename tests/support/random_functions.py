"""Random graphs with nested function calls, and the values that they compute."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from support.flat_graphs import function, graph, node

from placement_checks.core.placement import tensor_name

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_PARTS = 2  # the outputs of a Split
_OUTPUTS = ("y", "sum", "output")  # the names of the outputs of op types
_DEVICES = ("", "/device:GPU:0", "/job:worker/task:1", "/device:CPU:0")
_NAMES = ("a", "b", "c", "a/b", "b/a", "c_1", "a/c", "b/b/a")


@st.composite
def graphs(draw: st.DrawFn, names: Sequence[str] = _NAMES) -> Any:
    """A GraphDef with ops of some names; functions call functions that come before them."""
    library: list[Any] = []
    for number in range(draw(st.integers(0, 3))):
        arguments = [f"x{i}" for i in range(draw(st.integers(1, 2)))]
        nodes, tensors = draw(_nodes(names, library, arguments, in_function=True))
        made = [each.name for each in nodes]
        results = {
            f"r{i}": draw(st.sampled_from([*arguments, *tensors]))
            for i in range(draw(st.integers(1, 2)))
        }
        runs = draw(st.lists(st.sampled_from(made), max_size=2, unique=True)) if made else []
        library.append(function(f"f{number}", arguments, nodes, results, runs))
    inputs = [node("in", "Placeholder")]
    nodes, _ = draw(_nodes(names, library, ["in"], in_function=False))
    return graph([*inputs, *nodes], *library)


@st.composite
def _nodes(
    draw: st.DrawFn,
    names: Sequence[str],
    library: Sequence[Any],
    given: Sequence[str],
    *,
    in_function: bool,
) -> tuple[list[Any], list[str]]:
    """Nodes, and the tensors that they compute, with names as in a function or as in a graph."""
    made: list[Any] = []
    tensors: list[str] = []
    for name in draw(st.lists(st.sampled_from(names), max_size=5, unique=True)):
        known = st.sampled_from([*given, *tensors])
        earlier = st.sampled_from([each.name for each in made])
        waits = draw(st.lists(earlier, max_size=2, unique=True)) if made else []
        control = [f"^{each}" for each in waits]
        bound = draw(st.lists(earlier, max_size=1)) if made else []
        device = draw(st.sampled_from(_DEVICES))
        kind = draw(st.sampled_from(["Const", "Neg", "AddN", "Split", *(["call"] * 2)]))
        if kind == "call" and library:
            called = draw(st.sampled_from(library))
            arity = len(called.signature.input_arg)
            inputs = [draw(known) for _ in range(arity)]
            new = node(
                name,
                draw(st.sampled_from([*CALLS, called.signature.name])),
                *inputs,
                *control,
                device=device,
                bound=bound,
            )
            if new.op in CALLS:
                new.attr["f"].func.name = called.signature.name
                del new.attr["Tout"].list.type[:]
                new.attr["Tout"].list.type.extend([1] * len(called.signature.output_arg))
                outputs = [f"output:{i}" for i in range(len(called.signature.output_arg))]
            else:
                outputs = [f"{each.name}:0" for each in called.signature.output_arg]
        else:
            arity = {"Const": 0, "Split": 1, "Neg": 1}.get(kind, 2)
            op = "AddN" if kind == "call" else kind
            inputs = [draw(known) for _ in range(arity)]
            new = node(name, op, *inputs, *control, device=device, bound=bound)
            outputs = {"Neg": ["y:0"], "AddN": ["sum:0"]}.get(op, ["output:0"])
            if op == "Split":
                new.attr["num_split"].i = _PARTS
                outputs = [f"output:{i}" for i in range(_PARTS)]
        made.append(new)
        tensors += [
            f"{name}:{output}" if in_function else tensor_name(name, index)
            for index, output in enumerate(outputs)
        ]
    return made, tensors


def compute(op: str, kind: str, inputs: Sequence[int]) -> Sequence[int]:
    """The outputs of an op that is no call. A constant has the number of the end of its name."""
    if kind in ("Const", "Placeholder"):
        return [zlib.crc32(op.rpartition("/")[2].encode())]
    parts = range(_PARTS if kind == "Split" else 1)
    return [zlib.crc32(f"{kind} {inputs} {part}".encode()) for part in parts]


def values(graph_def: Any) -> Mapping[str, int]:
    """The values of all tensors of a graph; a call returns the results of its function."""
    library = {each.signature.name: each for each in graph_def.library.function}

    def run(
        nodes: Sequence[Any], given: Mapping[str, int], *, in_function: bool
    ) -> dict[str, int]:
        known = dict(given)
        for each in nodes:
            inputs = [known[source] for source in each.input if not source.startswith("^")]
            called = library.get(each.attr["f"].func.name if each.op in CALLS else each.op)
            if called is None:
                outputs = compute(each.name, each.op, inputs)
                named = [(kind, index) for kind in _OUTPUTS for index in range(len(outputs))]
            else:
                outputs = call(called, inputs)
                named = [("output", index) for index in range(len(outputs))]
                named += [(result.name, 0) for result in called.signature.output_arg]
            for (kind, index), value in zip(named, itertools.cycle(outputs)):
                known[f"{each.name}:{kind}:{index}"] = value
            for index, value in enumerate(() if in_function else outputs):
                known[tensor_name(each.name, index)] = value
        return known

    def call(called: Any, inputs: Sequence[int]) -> Sequence[int]:
        arguments = [each.name for each in called.signature.input_arg]
        known = run(called.node_def, dict(zip(arguments, inputs, strict=True)), in_function=True)
        return [known[called.ret[each.name]] for each in called.signature.output_arg]

    return run(graph_def.node, {}, in_function=False)
