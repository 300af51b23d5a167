"""Variables of a captured program get the names of another program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.capture.child_process.runner import without_live_objects
from placement_checks.capture.in_process.builder import build
from placement_checks.capture.renaming import with_renamed_variables
from placement_checks.core.missing import Missing
from placement_checks.core.program import CapturedProgram, Program
from placement_checks.run.runnable import make_runnable
from placement_checks.run.session import ProgramSession

tf1 = tf.compat.v1


def towers(num_gpus: int = 2) -> dict[str, Any]:
    losses, inputs = [], []
    with tf.device("/cpu:0"):
        weights = tf1.get_variable("fc/weights", [4, 1], use_resource=True)
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"):
            x = tf1.placeholder(tf.float32, [None, 4], name="fed")
            inputs.append({"x": x})
            losses.append(tf.reduce_mean(tf.square(tf.matmul(x, weights))))
    with tf.device("/cpu:0"):
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        train_op = optimizer.minimize(tf.add_n(losses) / num_gpus)
    return {"train_op": train_op, "loss": losses, "inputs": inputs}


@pytest.fixture(scope="module")
def captured() -> CapturedProgram:
    program = Program("towers", towers)
    return without_live_objects(build(program, 2, lambda _: None))


def test_variables_have_their_new_names_everywhere(captured: CapturedProgram) -> None:
    names = {"fc/weights": "net/kernel", "fc/weights/Momentum": "net/kernel/Momentum"}

    renamed = with_renamed_variables(captured, names)

    assert renamed
    before, after = captured.requested, renamed.requested
    assert {variable.name for variable in after.variables} == set(names.values())
    assert len(after.ops) == len(before.ops)
    assert after.where("net/kernel") == before.where("fc/weights")
    assert renamed.initial.initializers.keys() == set(names.values())
    known = {name for op in after.ops.values() for name in op.inputs}
    assert not any(name.lstrip("^").partition(":")[0] in names for name in known)
    assert not any(set(op.colocated) & names.keys() for op in after.ops.values())
    (call,) = after.step.gradient_calls
    assert call.sources == ["net/kernel"]
    assert call.weights == [""]


def test_the_program_computes_the_same(captured: CapturedProgram) -> None:
    renamed = with_renamed_variables(captured, {"fc/weights": "net/kernel"})
    assert renamed
    programs = [
        make_runnable(replace(each, program=Program("towers", towers)), "simulated")
        for each in (captured, renamed)
    ]
    rows = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    gradients = []
    for program in programs:
        with ProgramSession(program, 60.0) as session:
            session.initialize({})
            (name,) = program.gradients.by_variable
            session.load({name: np.ones((4, 1), np.float32)})
            feeds = {mapping["x"]: rows for mapping in program.inputs}
            gradients.append(session.gradients(feeds))

    assert [set(each) for each in gradients] == [{"fc/weights"}, {"net/kernel"}]
    assert gradients[0]["fc/weights"].tolist() == gradients[1]["net/kernel"].tolist()


@pytest.mark.parametrize("name", ["fed", "fed_1"])
def test_a_name_that_another_op_has(captured: CapturedProgram, name: str) -> None:
    renamed = with_renamed_variables(captured, {"fc/weights": name})

    assert renamed == Missing(
        f"variables were renamed, and other ops of {captured.name} have the new names: {name}"
    )


def test_two_variables_may_exchange_their_names(captured: CapturedProgram) -> None:
    names = {
        "fc/weights": "fc/weights/Momentum",
        "fc/weights/Momentum": "fc/weights",
    }

    renamed = with_renamed_variables(captured, names)

    assert renamed
    assert {variable.name for variable in renamed.requested.variables} == set(names)
