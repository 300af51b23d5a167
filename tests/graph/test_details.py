"""Details of single ops, in live graphs and in files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.eager_programs import rows, watched, weights

from placement_checks import Program, place
from placement_checks.capture.child_process.runner import without_live_objects
from placement_checks.capture.in_process.builder import build as build_in_process
from placement_checks.core.limits import Limit
from placement_checks.core.placement import Body, Details, Tensor

tf1 = tf.compat.v1


@pytest.fixture(scope="module", params=["live", "file"])
def details(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Details:
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 8, 8, 3], name="x")
        kernel = tf.constant(0.5, shape=[3, 3, 3, 2], name="kernel")
        tf.nn.conv2d(x, kernel, strides=2, padding="SAME", name="conv")
        tf.constant([0, 1, 2], name="small")
        tf.constant(1.0, shape=[4096], name="ones")
        tf.constant([float(number) for number in range(4096)], name="many")
        tf.split(x, 2, axis=3 - 2, name="parts")

        @tf.function
        def inner(value: Any) -> Any:
            return tf.tanh(value)

        inner(x)
    if request.param == "live":
        return place(graph, gpus=1).placement.details
    folder = tmp_path_factory.mktemp("graphs")
    tf.io.write_graph(graph, str(folder), "graph.pb", as_text=False)
    return place(folder / "graph.pb", gpus=1).placement.details


def test_outputs_have_dtype_and_shape(details: Details) -> None:
    assert details.outputs("conv") == [Tensor("float32", (None, 4, 4, 2))]
    assert details.outputs("parts") == [Tensor("float32", (None, 4, 8, 3))] * 2
    assert list(details.outputs("nowhere")) == []


def test_constants_have_values_unless_they_are_large(details: Details) -> None:
    assert details.value("small") == ("int32", (3,), 0, 1, 2)
    assert details.value("kernel") == ("float32", (3, 3, 3, 2), *[0.5] * 54)
    assert details.value("ones") == ("float32", (4096,), *[1.0] * 4096)
    assert details.value("many") is None
    assert details.value("conv") is None
    assert details.value("nowhere") is None


def test_attributes_are_plain(details: Details) -> None:
    known = details.attributes("conv")

    assert known["strides"] == (1, 2, 2, 1)
    assert known["padding"] == b"SAME"
    assert details.attributes("small").keys() == {"dtype"}
    assert not [key for key in known if key.startswith("_")]


def test_large_constants_have_digests_that_two_graphs_share(details: Details) -> None:
    with tf.Graph().as_default() as graph:
        numbers = np.arange(4096, dtype=np.float32)
        tf.constant(numbers, name="same")
        tf.constant(numbers + 1, name="others")
        tf.constant(numbers[None], name="shaped")
        tf.constant(numbers.astype(np.int32), name="integers")
        tf.constant(["a" * 2000], name="text")
        tf.constant([], name="empty")
        tf.constant(0.0, shape=[1 << 20], name="huge")
    other = place(graph, gpus=1).placement.details

    assert other.digest("same") == details.digest("many") != ""
    names = ("same", "others", "shaped", "integers", "text", "empty", "huge")
    assert len({other.digest(name) for name in names} - {""}) == len(names)
    assert details.digest("conv") == details.digest("nowhere") == ""


def dataset_op(limit: int, scope: str) -> Body:
    """The bodies of the functions that a dataset maps."""
    with tf.Graph().as_default() as graph, tf.name_scope(scope):
        dataset = tf.data.Dataset.range(3).map(lambda value: value + limit)
        tf1.data.make_one_shot_iterator(dataset).get_next()
    evidence = place(graph, gpus=1)
    (iterator,) = (op for op in evidence.ops.values() if op.type == "OneShotIterator")
    body: Body = evidence.placement.details.attributes(iterator.name)["dataset_factory"]
    return body


def test_functions_with_equal_bodies_are_equal() -> None:
    assert isinstance(dataset_op(1, "a"), Body)
    assert dataset_op(1, "a") == dataset_op(1, "b")
    assert dataset_op(1, "a") != dataset_op(2, "a")


def test_shapes_of_huge_files_are_not_inferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="x")
    tf.io.write_graph(graph, str(tmp_path), "graph.pb", as_text=False)
    monkeypatch.setattr("placement_checks.core.limits.INFERRED_OPS", Limit(0, "ops"))

    assert place(tmp_path / "graph.pb", gpus=1).placement.details.outputs("x") == ()


@tf.custom_gradient
def reversed_gradient(x: Any) -> tuple[Any, Any]:
    return tf.identity(x, name="result"), lambda slope: -slope


def test_gradients_of_a_program_are_named_for_their_ops() -> None:
    tf.RegisterGradient("Straight")(lambda _, slope: slope)

    def build() -> None:
        x = tf1.placeholder(tf.float32, [4], name="x")

        def rounded() -> Any:
            with tf1.get_default_graph().gradient_override_map({"Round": "Straight"}):
                return tf.round(x, name="overridden")

        rounded()
        tf.cond(x[0] > 0, rounded, lambda: x, name="branch")
        tf.round(x, name="plain")
        reversed_gradient(x)

    program = build_in_process(Program("build", build), 1, lambda _: None)
    for each in (program, pickle.loads(pickle.dumps(without_live_objects(program)))):
        placement = each.requested
        known = {
            name: gradient
            for name in placement.ops
            if (gradient := placement.details.custom_gradient(name))
        }
        (of_branch,) = (
            name for name, op in placement.ops.items() if op.type == "Round" and op.caller
        )
        (of_function,) = (name for name, op in placement.ops.items() if op.type == "IdentityN")
        assert known.keys() == {"overridden", of_branch, of_function}
        assert known["overridden"] == known[of_branch] == "Straight"


def test_gradients_of_a_program_keep_their_names_in_a_traced_step() -> None:
    def program() -> None:
        w = weights()

        @tf.function
        def errors(x: Any) -> Any:
            return tf.reduce_mean(tf.square(reversed_gradient(tf.matmul(x, w))))

        @tf.function
        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = errors(x)
            w.assign_sub(tape.gradient(loss, w))

        step(rows())

    placement = watched(program).requested

    details, ops = placement.details, placement.ops.values()
    assert {op.type for op in ops if details.custom_gradient(op.name)} == {"IdentityN"}
