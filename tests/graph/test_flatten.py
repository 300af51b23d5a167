"""Calls are replaced by bodies, as in TensorFlow's runtime."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.flat_graphs import Flat, flattened, function, graph, node, nodes_of
from support.random_functions import graphs, values

from placement_checks.core.devices import Device
from placement_checks.core.placement import producer_of
from placement_checks.graph.edits import colocated_ops
from placement_checks.graph.flatten import unpack_optionals
from placement_checks.graph.inlining import FunctionOp, function_library

X = node("x", "Placeholder")
DOUBLE = function("double", ["a"], [node("sum", "AddN", "a", "a")], {"r": "sum:sum:0"})


def call(name: str, called: str, *inputs: str, **more: Any) -> Any:
    return node(name, "StatefulPartitionedCall", *inputs, f=called, **more)


def test_a_body_replaces_its_call() -> None:
    flat = flattened(graph([X, call("call", "double", "x"), node("y", "Neg", "call")], DOUBLE))

    assert nodes_of(flat) == {
        "x": Flat("Placeholder", ()),
        "call/sum": Flat("AddN", ("x", "x")),
        "call/output_control_node": Flat("NoOp", ()),
        "y": Flat("Neg", ("call/sum",)),
    }
    assert flat.tensor("call:0") == "call/sum"
    assert flat.tensor("y:0") == "y"
    assert flat.op("call") == "call/output_control_node"
    assert flat.op("y") == "y"
    assert flat.origins["call/sum"] == FunctionOp("double", "sum")
    assert flat.origins["y"] == FunctionOp("", "y")


def test_a_function_that_is_called_twice_has_two_bodies() -> None:
    flat = flattened(graph([X, call("one", "double", "x"), call("two", "double", "one")], DOUBLE))

    nodes = nodes_of(flat)
    assert nodes["one/sum"].inputs == ("x", "x")
    assert nodes["two/sum"].inputs == ("one/sum", "one/sum")
    assert [name for name, origin in flat.origins.items() if origin.function == "double"] == [
        "one/sum",
        "two/sum",
    ]


def test_calls_inside_bodies() -> None:
    outer = function("outer", ["b"], [call("inner", "double", "b")], {"s": "inner:output:0"})

    flat = flattened(
        graph([X, call("call", "outer", "x"), node("y", "Neg", "call")], outer, DOUBLE)
    )

    assert nodes_of(flat)["call/inner/sum"].inputs == ("x", "x")
    assert nodes_of(flat)["y"].inputs == ("call/inner/sum",)


def test_a_function_that_returns_its_argument() -> None:
    same = function("same", ["a"], [], {"r": "a"})

    flat = flattened(graph([X, call("call", "same", "x"), node("y", "Neg", "call")], same))

    assert nodes_of(flat)["y"].inputs == ("x",)
    assert flat.tensor("call:0") == "x"


def test_a_first_output_has_no_number() -> None:
    ops = [X, call("call", "double", "x:0"), node("y", "AddN", "call:0", "x:0")]

    nodes = nodes_of(flattened(graph(ops, DOUBLE)))

    assert nodes["call/sum"].inputs == ("x", "x")
    assert nodes["y"].inputs == ("call/sum", "x")


def test_a_function_name_as_op_type() -> None:
    flat = flattened(graph([X, node("call", "double", "x"), node("y", "Neg", "call")], DOUBLE))

    assert nodes_of(flat)["y"].inputs == ("call/sum",)


def test_outputs_of_ops_with_several_outputs() -> None:
    """A FunctionDef names outputs, a GraphDef numbers them."""
    split = node("split", "Split", "axis:output:0", "a")
    split.attr["num_split"].i = 2
    body = function(
        "parts",
        ["a"],
        [node("axis", "Const"), split, node("b", "Neg", "split:output:1")],
        {"r": "b:y:0", "s": "split:output:1"},
    )

    flat = flattened(graph([X, call("call", "parts", "x"), node("y", "Neg", "call:1")], body))

    assert nodes_of(flat)["call/split"].inputs == ("call/axis", "x")
    assert nodes_of(flat)["call/b"].inputs == ("call/split:1",)
    assert nodes_of(flat)["y"].inputs == ("call/split:1",)


def test_the_order_of_a_call_is_kept() -> None:
    """The body waits for the control inputs of the call, and later ops wait for the whole body."""
    body = function(
        "f",
        ["a"],
        [
            node("first", "Const"),
            node("second", "Neg", "first:output:0", "^third"),
            node("third", "NoOp"),
            node("of_argument", "Neg", "a"),
        ],
        {"r": "second:y:0"},
        ["third"],
    )
    before, after = node("before", "NoOp"), node("after", "NoOp", "^call")

    flat = flattened(graph([X, before, call("call", "f", "x", "^before"), after], body))

    nodes = nodes_of(flat)
    assert nodes["call/input_control_node"] == Flat("NoOp", ("^before",))
    assert nodes["call/first"].inputs == ("^call/input_control_node",)
    assert nodes["call/second"].inputs == ("call/first", "^call/third")
    assert nodes["call/third"].inputs == ("^call/input_control_node",)
    assert nodes["call/of_argument"].inputs == ("x",)
    assert nodes["call/output_control_node"].inputs == ("^call/third",)
    assert nodes["after"].inputs == ("^call/output_control_node",)


def test_ops_after_an_empty_call_wait_for_its_start() -> None:
    nodes = [X, call("call", "double", "x", "^x"), node("after", "NoOp", "^call")]

    flat = nodes_of(flattened(graph(nodes, DOUBLE)))

    assert flat["call/output_control_node"].inputs == ("^call/input_control_node",)


def test_ops_that_wait_for_an_argument_wait_for_its_input() -> None:
    body = function("f", ["a"], [node("b", "NoOp", "^a")], {}, ["b"])

    flat = flattened(graph([X, call("call", "f", "x:1")], body))

    assert nodes_of(flat)["call/b"].inputs == ("^x",)


@pytest.mark.parametrize(
    ("own", "outer", "expected"),
    [
        ("", "", ""),
        ("", "/device:GPU:1", "/device:GPU:1"),
        ("/device:CPU:0", "/device:GPU:1", "/device:CPU:0"),
        ("/device:GPU:*", "/job:worker", "/job:worker/device:GPU:*"),
    ],
)
def test_a_body_takes_the_device_of_its_call(own: str, outer: str, expected: str) -> None:
    body = function("f", ["a"], [node("b", "Neg", "a", device=own)], {"r": "b:y:0"})
    outside = function("g", ["a"], [call("inner", "f", "a")], {"r": "inner:output:0"})

    flat = flattened(graph([X, call("call", "g", "x", device=outer)], body, outside))

    assert nodes_of(flat)["call/inner/b"].device == expected


def test_colocation_in_a_body() -> None:
    body = function(
        "f",
        ["a"],
        [
            node("own", "Const"),
            node("to_own", "Neg", "own:output:0", bound=["own"]),
            node("to_argument", "Neg", "a", bound=["a"]),
            node("to_placeholder", "Neg", "a", bound=["Placeholder_1"]),
            node("to_outer", "Neg", "a", bound=["w"]),
            node("to_nothing", "Neg", "a", bound=["gone", "own"]),
            node("to_nothing_at_all", "Neg", "a", bound=["gone"]),
        ],
        {"r": "own:output:0"},
    )
    around = function("g", ["c"], [node("w", "Const"), call("inner", "f", "c")], {"r": "c"})

    flat = flattened(
        graph([X, call("call", "g", "x")], body, around),
        placeholders={"f": ["Placeholder_1"], "g": []},
    )

    bound = {
        each.name.rpartition("/")[2]: list(each.attr["_class"].list.s)
        for each in flat.graph_def.node
        if "_class" in each.attr
    }
    assert bound == {
        "to_own": [b"loc:@call/inner/own"],
        "to_argument": [b"loc:@x"],
        "to_placeholder": [b"loc:@x"],
        "to_outer": [b"loc:@call/w"],
        "to_nothing": [b"loc:@call/inner/own"],
    }


def loop(body: str) -> Any:
    return node("loop", "While", "x", cond="going", body=body)


GOING = function("going", ["a"], [node("less", "Less", "a", "a")], {"r": "less:z:0"})
TRIP = function("trip", ["a"], [node("next", "Neg", "a")], {"r": "next:y:0"})


def test_a_loop_of_steps_is_one_iteration() -> None:
    nodes = [X, loop("trip"), node("y", "Neg", "loop")]

    flat = flattened(graph(nodes, GOING, TRIP), steps=["trip"])

    assert nodes_of(flat)["next"].inputs == ("x",)
    assert nodes_of(flat)["y"].inputs == ("next",)
    assert flat.loops == ["loop"]


def test_a_loop_within_a_step_stays() -> None:
    flat = flattened(graph([X, loop("trip")], GOING, TRIP))

    assert nodes_of(flat)["loop"] == Flat("While", ("x",))
    assert not flat.loops
    assert {each.signature.name for each in flat.graph_def.library.function} == {"going", "trip"}


def test_an_op_that_contains_a_step_is_reported() -> None:
    scan = node("scan", "ScanDataset", "x", f="trip")

    assert flattened(graph([X, scan], TRIP), steps=["trip"]).closed == {"scan": "ScanDataset"}
    assert not flattened(graph([X, scan], TRIP)).closed
    assert not flattened(graph([X, loop("trip")], GOING, TRIP), steps=["trip"]).closed


SHORT = function("short", ["a"], [node("b", "Neg", "a")], {"r": "b:y:0"})
LONG = function("long", ["a"], [node("c", "Neg", "a"), node("d", "Neg", "c:y:0")], {"r": "d:y:0"})


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(["short", "long"], {"b"}), (["long"], {"c", "d"}), (["short"], {"b"}), ([], {"which"})],
)
def test_the_shorter_side_of_a_branch_with_a_step_is_inlined(
    steps: list[str], expected: set[str]
) -> None:
    branch = node("which", "If", "p", "x", then_branch="long", else_branch="short")

    flat = flattened(graph([X, node("p", "Placeholder"), branch], SHORT, LONG), steps=steps)

    ops = {name for name in nodes_of(flat) if not name.endswith("control_node")}
    assert ops == {"x", "p"} | expected


def test_calls_that_only_lead_to_the_step_are_left_out_of_names() -> None:
    outer = function(
        "outer",
        ["b"],
        [node("sum", "Const"), call("inner", "double", "b")],
        {"s": "inner:output:0"},
    )

    flat = flattened(
        graph([X, node("n", "Const"), call("call", "outer", "x")], outer, DOUBLE),
        steps=["outer", "double"],
    )

    nodes = nodes_of(flat)
    assert set(nodes) == {
        "x",
        "n",
        "call/sum",
        "sum",
        "output_control_node",
        "call/output_control_node",
    }
    assert flat.origins["sum"] == FunctionOp("double", "sum")
    assert flat.tensor("call:0") == "sum"


def test_a_name_in_use_is_not_shortened() -> None:
    body = function("f", ["a"], [node("x", "Neg", "a", bound=["x"])], {"r": "x:y:0"})

    flat = flattened(graph([X, call("call", "f", "x")], body), steps=["f"])

    assert nodes_of(flat)["call/x"].inputs == ("x",)
    (bound,) = flat.graph_def.node[1].attr["_class"].list.s
    assert bound == b"loc:@call/x"


def test_names_stay_where_several_calls_hold_steps() -> None:
    flat = flattened(
        graph([X, call("one", "double", "x"), call("two", "double", "x")], DOUBLE),
        steps=["double"],
    )

    assert {"one/sum", "two/sum"} <= set(nodes_of(flat))


def test_calls_compiled_by_xla_are_reported() -> None:
    compiled, plain = call("compiled", "double", "x"), call("plain", "double", "x")
    compiled.attr["_XlaMustCompile"].b = True

    assert flattened(graph([X, compiled, plain], DOUBLE)).compiled == ["compiled"]


def test_the_given_graph_is_not_changed() -> None:
    given_graph = graph([X, call("call", "double", "x")], DOUBLE)
    before = given_graph.SerializeToString(deterministic=True)

    flattened(given_graph)

    assert given_graph.SerializeToString(deterministic=True) == before


def test_a_long_chain_of_ops_in_reverse_order() -> None:
    nodes = [node(f"op_{i}", "Neg", f"op_{i + 1}") for i in range(3000)]

    flat = flattened(graph([*nodes, node("op_3000", "Const")]))

    assert [each.name for each in flat.graph_def.node] == [f"op_{i}" for i in range(3000, -1, -1)]


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join)


@given(
    outer=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    inner=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    holds_step=st.booleans(),
)
def test_names_are_unique_and_ops_come_after_inputs(
    outer: list[str], inner: list[str], holds_step: bool
) -> None:
    body = [node(name, "Neg", f"{inner[i - 1]}:y:0" if i else "a") for i, name in enumerate(inner)]
    called = function("f", ["a"], body, {"r": f"{inner[-1]}:y:0"})
    first, *others = outer
    nodes = [node("in", "Placeholder"), call(first, "f", "in")]
    nodes += [node(name, "Neg", first) for name in others]

    flat = flattened(graph(nodes[::-1], called), steps=["f"] if holds_step else [])

    done: set[str] = set()
    for each in flat.graph_def.node:
        assert each.name not in done
        assert {producer_of(source) for source in each.input} <= done
        done.add(each.name)
    traced = sorted(flat.origins[name].name for name in done if name in flat.origins)
    assert traced == sorted(["in", *inner, *others])


@given(graphs())
def test_a_flat_graph_computes_the_same(graph_def: Any) -> None:
    flat = flattened(graph_def)

    before, after = values(graph_def), values(flat.graph_def)
    assert {tensor: after[flat.tensor(tensor)] for tensor in before if ":" not in tensor} == {
        tensor: value for tensor, value in before.items() if ":" not in tensor
    }
    library = function_library(graph_def)
    nodes = {each.name: each for each in flat.graph_def.node}
    for body in flat.bodies:
        called = library[body.function].node_def if body.function else graph_def.node
        for each in called:
            if each.name in body.ops:
                made = nodes[body.ops[each.name]]
                assert made.op == each.op
                assert Device.parse(made.device).matches(Device.parse(each.device))
                waits = [each for each in each.input if each[1:] in body.ops]
                assert {f"^{body.ops[wait[1:]]}" for wait in waits} <= {*made.input}
                bound = [name for name in colocated_ops(each) if name in body.ops]
                assert {body.ops[name] for name in bound} <= {*colocated_ops(made)}
        for name, inner in body.calls.items():
            (node,) = (each for each in called if each.name == name)
            for op in inner.ops.values():
                assert Device.parse(nodes[op].device).over(Device.parse(node.device)) == (
                    Device.parse(nodes[op].device)
                )
    assert all(name in nodes for each in nodes.values() for name in colocated_ops(each))


# Comparison with TensorFlow.


def training() -> Any:
    w = tf.Variable([[1.0], [2.0]])

    @tf.function
    def loss_of(x: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.matmul(x, w)))

    @tf.function
    def update(gradient: Any) -> None:
        w.assign_sub(0.1 * gradient)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x) + tf.where(tf.reduce_any(x > 1.0), 1.0, 2.0)
        update(tape.gradient(loss, w))
        return loss

    return step


def looping() -> Any:
    w = tf.Variable([[1.0], [2.0]])

    @tf.function
    def half(x: Any) -> Any:
        return x / 2.0

    @tf.function
    def step(x: Any) -> Any:
        w.assign_add(tf.transpose(half(half(x)[:1])))
        return half(w)

    return step


# Ops that the runtime adds for arguments, results and control order of functions.
OF_CALLS = {"_Arg", "_Retval", "Placeholder", "Identity", "NoOp"}


@pytest.fixture
def unoptimized() -> Iterator[None]:
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options(before)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize("make", [training, looping])
def test_the_runtime_has_the_same_ops(make: Callable[[], Any]) -> None:
    step, x = make(), tf.ones([4, 2])
    flat = flattened(step.get_concrete_function(x).graph.as_graph_def())
    context = sys.modules["tensorflow.python.eager.context"].context()
    context.enable_run_metadata()
    try:
        step(x)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()

    (graphs,) = metadata.function_graphs
    runtime = Counter(each.op for each in graphs.post_optimization_graph.node)
    own = Counter(each.op for each in flat.graph_def.node)
    for type in OF_CALLS:
        runtime.pop(type, None)
        own.pop(type, None)
    assert own == runtime
    assert own["AssignSubVariableOp" if make is training else "AssignAddVariableOp"] == 1


def test_values_of_an_optional_are_the_packed_tensors() -> None:
    graph_def = graph(
        [
            node("a", "Neg"),
            node("b", "Neg"),
            node("pack", "OptionalFromValue", "a", "b:2", "^a"),
            node("pass", "Identity", "pack"),
            node("open", "OptionalGetValue", "pass"),
            node("next", "IteratorGetNextAsOptional"),
            node("rows", "OptionalGetValue", "next"),
            node("user", "AddN", "open:1", "rows:1", "open", "^open"),
        ]
    )
    unpack_optionals(graph_def)

    assert list(graph_def.node[-1].input) == ["b:2", "rows:1", "a", "^open"]
