"""The step that a program returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf

from placement_checks import Program, place
from placement_checks.core.errors import InputError
from placement_checks.core.placement import StepOps
from placement_checks.graph.train_step import initial_state

tf1 = tf.compat.v1


def step_ops_of(**returned: Any) -> StepOps:
    """The step ops of a program that returns these values; functions receive the graph's ops."""

    def build() -> dict[str, Any]:
        x = tf1.placeholder(tf.float32, [None], name="x")
        y = tf.identity(x, name="y")
        known = {"x": x, "y": y, "op": y.op}
        return {key: value(known) if callable(value) else value for key, value in returned.items()}

    return place(Program("train.py:build", build), gpus=1).placement.step


def test_ops_and_tensors_are_identified_by_name() -> None:
    training = step_ops_of(
        train_op=lambda known: known["op"],
        loss=lambda known: [known["x"], known["y"]],
        inputs=lambda known: [{"x": known["x"]}, {"x": known["y"]}],
    )

    assert training.train_op == ("y",)
    assert training.losses == ("x:0", "y:0")
    assert training.inputs == (("x:0",), ("y:0",))
    assert training.session is None


def test_a_composite_tensor_is_identified_by_all_its_tensors() -> None:
    inputs = step_ops_of(
        inputs=lambda _: {"x": tf1.sparse_placeholder(tf.float32, name="s")}
    ).inputs

    assert [sorted(names) for names in inputs] == [["s/indices:0", "s/shape:0", "s/values:0"]]


def test_one_mapping_of_inputs_applies_to_all_towers() -> None:
    assert step_ops_of(inputs=lambda known: {"x": known["x"]}).inputs == (("x:0",),)


@pytest.mark.parametrize("use_resource", [True, False])
def test_variables_and_assignments_are_identified_by_their_ops(use_resource: bool) -> None:
    def build() -> dict[str, Any]:
        step = tf1.get_variable("step", initializer=0, use_resource=use_resource)
        return {"train_op": step.assign_add(1), "loss": step}

    evidence = place(build)

    (counted,) = evidence.placement.step.train_op
    assert evidence.ops[counted.partition(":")[0]].type.startswith("AssignAdd")
    assert [loss.partition(":")[0] for loss in evidence.placement.step.losses] == ["step"]


def test_several_ops_are_one_step_together() -> None:
    assert step_ops_of(train_op=lambda known: [known["op"], known["x"]]).train_op == ("y", "x:0")


@pytest.mark.parametrize(
    ("config", "session"),
    [
        (
            tf1.ConfigProto(
                allow_soft_placement=True, gpu_options=tf1.GPUOptions(allow_growth=True)
            ),
            {"allow_soft_placement": True, "gpu_options": {"allow_growth": True}},
        ),
        ({"gpu_options": {"allow_growth": True}}, {"gpu_options": {"allow_growth": True}}),
        (tf1.ConfigProto(), {}),
        (7, None),
    ],
)
def test_a_session_configuration_is_a_mapping(
    config: Any, session: Mapping[str, Any] | None
) -> None:
    assert step_ops_of(config=config).session == session


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("train_op", 7, "7"),
        ("loss", ["nowhere:0"], "'nowhere:0'"),
        (
            "loss",
            tf.Variable(1.0, name="v"),
            "<tf.Variable 'v:0' shape=() dtype=float32, numpy=1.0>",
        ),
        ("inputs", [{"x": object}], "<class 'object'>"),
    ],
)
def test_a_value_that_is_not_an_op_of_the_graph_is_refused(
    key: str, value: Any, shown: str
) -> None:
    with pytest.raises(InputError) as raised:
        step_ops_of(**{key: lambda _: value})

    assert raised.value.object == "train.py:build"
    assert raised.value.message == (
        f"its {key} is {shown}, which is not an op of the graph it built"
    )
    assert raised.value.fix == "return the ops and tensors themselves"


def test_an_op_of_another_graph_is_refused() -> None:
    with tf.Graph().as_default():
        stranger = tf.constant(1.0, name="x")

    with pytest.raises(InputError, match="which is not an op of the graph it built"):
        step_ops_of(loss=lambda _: stranger)


@pytest.mark.parametrize("use_resource", [True, False])
def test_initializers_of_variables_in_no_collection_are_found(use_resource: bool) -> None:
    """Metrics of Keras have such variables. Later assignments do not initialize them."""
    with tf.Graph().as_default() as graph:
        with tf1.name_scope("metrics"):
            total = tf1.Variable(0.0, name="total", collections=[], use_resource=use_resource)
        total.assign(1.0)
        w = tf1.get_variable("w", [], use_resource=use_resource)
        w.assign(total)
        state = initial_state(graph)

    assert state.initializers == {"w": "w/Assign"}
    assert state.local_initializers == {"metrics/total": "metrics/total/Assign"}
    assert state.compared == {"w"}


@pytest.mark.parametrize("use_resource", [True, False])
def test_the_values_of_scalar_variables_that_no_op_changes(use_resource: bool) -> None:
    def build() -> None:
        def variable(name: str, value: Any) -> Any:
            return tf1.get_variable(name, initializer=value, use_resource=use_resource)

        variable("rate", 0.25)
        variable("towers", 2)
        variable("rates", [0.5, 0.25])
        variable("drawn", tf.random.normal([]))
        variable("scheduled", 0.5).assign(0.25)
        tf1.train.Saver()

    step = place(Program("train.py:build", build), gpus=1).placement.step

    assert step.constants == {"rate": 0.25, "towers": 2.0}
