"""The tensors that ops in function bodies read, and the tensors that bodies return."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from hypothesis import given
from support.flat_graphs import flattened, function, graph, node
from support.random_functions import graphs

from placement_checks.core.placement import Op, Placement, producer_of
from placement_checks.graph.details import GraphDetails
from placement_checks.graph.reading import GraphSource, from_live_graph

tf1 = tf.compat.v1


def read(of: Any) -> Placement:
    source = (
        from_live_graph(of, "test")
        if isinstance(of, tf.Graph)
        else GraphSource(details=GraphDetails(of))
    )
    return source.read_placement("test")


def only(placement: Placement, kind: str, caller: str) -> Op:
    """The only op of a type in the bodies that an op calls."""
    (op,) = (op for op in placement.ops.values() if op.type == kind and op.caller == caller)
    return op


def test_arguments_of_branches_and_calls_keep_their_output_numbers() -> None:
    @tf.function
    def joined(one: Any, other: Any) -> Any:
        first, second = tf.unstack(one)
        return second, tf.stack([other, second, first]), other

    with tf.Graph().as_default() as built:
        zero, one = tf.split(tf1.placeholder(tf.float32, [8, 4]), 2, name="split")
        chosen = tf1.placeholder(tf.bool, [], name="chosen")
        rows = tf.unstack(one, name="rows")
        results = joined(tf.stack(rows[:2]), rows[3])
        tf.exp(results[1], name="used")
        tf.cond(chosen, lambda: tf.tanh(one), lambda: zero, name="branch")
    placement = read(built)

    call = producer_of(placement.ops["used"].inputs[0])
    assert list(only(placement, "Tanh", "branch").inputs) == ["split:1"]
    unpack, stack = (only(placement, kind, call) for kind in ("Unpack", "Pack"))
    assert list(unpack.inputs) == ["stack"]
    assert list(stack.inputs) == ["rows:3", f"{unpack.name}:1", unpack.name]
    assert placement.results["branch"].keys() == {"/then", "/else"}
    second, whole, other = placement.results[call][""]
    assert [list(placement.ops[name].inputs) for name in (second, whole, other)] == [
        [f"{unpack.name}:1"],
        [stack.name],
        ["rows:3"],
    ]
    assert placement.loop_variables == {}


def test_ops_that_read_loop_variables_are_recorded() -> None:
    with tf.Graph().as_default() as built:
        zero, one = tf.split(tf1.placeholder(tf.float32, [8, 4]), 2, name="split")

        def inner(kept: Any) -> Any:
            return tf.while_loop(
                lambda turn, _: turn < 2.0,
                lambda turn, state: (turn + 1.0, tf.sin(state) * kept),
                [0.0, kept],
                name="inner",
            )[1]

        tf.while_loop(
            lambda _, kept, _other: tf.reduce_sum(kept) > 0,
            lambda turn, kept, other: (turn + 1, tf.tanh(other) + zero, inner(kept)),
            [0, one, zero],
            name="outer",
        )
    placement = read(built)

    outer = placement.ops["outer"]
    number = {name: at for at, name in enumerate(outer.inputs) if name in ("split:1", "split")}
    kept, other = number["split:1"], number["split:1"] + 1
    tanh = only(placement, "Tanh", "outer")
    assert list(tanh.inputs) == ["split"]
    assert placement.loop_variables[tanh.name] == {0: f"outer:{other}"}
    condition = only(placement, "Sum", "outer")
    assert placement.loop_variables[condition.name] == {0: f"outer:{kept}"}
    (added,) = (
        op for op in placement.ops.values() if op.caller == "outer" and tanh.name in op.inputs
    )
    assert list(added.inputs) == [tanh.name, "split"]
    assert added.name not in placement.loop_variables  # it reads no loop variable, but a constant

    loop = only(placement, outer.type, "outer")
    assert f"outer:{kept}" in placement.loop_variables[loop.name].values()
    sine = only(placement, "Sin", loop.name)
    (state,) = placement.loop_variables[sine.name].values()
    assert producer_of(state) == loop.name
    (product,) = (op for op in placement.ops.values() if sine.name in op.inputs)
    assert placement.loop_variables[product.name] == {1: f"outer:{kept}"}
    body = placement.results["outer"]["/body"]
    assert len(body) == len(outer.inputs)
    assert body[kept] == added.name
    assert placement.results["outer"]["/cond"]


def test_a_loop_variable_in_another_place_of_the_result() -> None:
    swap = function("swap", ["a", "b", "c"], [], {"x": "b", "y": "a", "z": "c"})
    always = function("always", ["a", "b", "c"], [node("is", "Neg", "a")], {"r": "is:y:0"})
    feeds = [node(name, "Placeholder") for name in "uvw"]
    loop = node("loop", "While", "u", "v", "w", cond="always", body="swap")

    placement = read(graph([*feeds, loop], swap, always))

    assert placement.results["loop"] == {
        "/cond": ["loop/cond/is"],
        "/body": ["loop:1", "loop", "w"],
    }
    assert placement.loop_variables == {"loop/cond/is": {0: "loop"}}


def test_outputs_of_an_unknown_op_are_distinct() -> None:
    uses = [node("one", "Neg", "new:left:0"), node("two", "Neg", "new:right:0")]
    called = function("f", ["a"], [node("new", "OpOfTheFuture", "a"), *uses], {"r": "one:y:0"})
    call = node("call", "PartitionedCall", "x", f="f")

    placement = read(graph([node("x", "Placeholder"), call], called))

    assert [list(placement.ops[f"call/{name}"].inputs) for name in ("one", "two")] == [
        ["call/new"],
        ["call/new:1"],
    ]


@given(graphs(names=("p", "q", "r")))
def test_results_and_inputs_agree_with_a_graph_without_calls(graph_def: Any) -> None:
    placement = read(graph_def)
    assert isinstance(placement.details, GraphDetails)

    def without_calls(tensor: str) -> str:
        call, _, output = tensor.partition(":")
        if call not in placement.results:
            return tensor
        return without_calls(placement.results[call][""][int(output or 0)])

    flat = flattened(graph_def)
    for each in flat.graph_def.node:
        if each.name in flat.origins:
            of_graph, of_flat = (
                [source for source in inputs if not source.startswith("^")]
                for inputs in (placement.ops[each.name].inputs, each.input)
            )
            assert [*map(without_calls, of_graph)] == of_flat
            assert (
                placement.details.bodies.get(each.name, ("", each.name))
                == (flat.origins[each.name])
            )
