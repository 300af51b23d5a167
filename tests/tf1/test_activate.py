"""A program of TensorFlow 1 runs in the block, which restores everything afterwards."""

from __future__ import annotations

import builtins
import collections
import fractions
import inspect
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.layers import normalization
from tensorflow.python.ops import (
    array_ops,
    control_flow_ops,
    functional_ops,
    variable_scope,
    variables,
)

from placement_checks.tf.process_state import Behavior
from placement_checks.tf1.activate import as_tensorflow_1
from placement_checks.tf1.lazy_modules import UsedNames

tf1 = tf.compat.v1
FOLDER = Path(tf.__file__).parent

PROGRAM = """
import collections
import inspect
import time
import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib.layers.python.layers import initializers
from tensorflow.python.ops import control_flow_ops
import tensorflow.gfile
import tensorflow.nn as nn

assert tf.__version__.startswith("1.15")
x = tf.placeholder(tf.float32, [None, 3])
net = slim.fully_connected(x, 2, weights_initializer=initializers.xavier_initializer())
net = tf.layers.dense(net, 2)
net = control_flow_ops.cond(tf.constant(True), lambda: net, lambda: net)
w = tf.get_variable("w", [int(x.shape[1].value)])
"""


class Reached(Exception):
    pass


def state() -> dict[str, Any]:
    """The state that the block changes."""
    owners = [np, collections, inspect, time, fractions, ops, array_ops, control_flow_ops]
    owners += [variables, variable_scope, functional_ops, normalization]
    return {
        "modules": {name: sys.modules[name] for name in sys.modules if is_of_interface(name)},
        "finders": [*sys.meta_path],
        "import": builtins.__import__,
        "behavior": Behavior.current(),
        **{owner.__name__: {*vars(owner)} - {"__warningregistry__"} for owner in owners},
        "keras": [vars(tf1)["keras"], vars(tf1)["layers"], vars(tf1.nn)["rnn_cell"]],
        "normalization": vars(normalization)["normalization"],
    }


def is_of_interface(name: str) -> bool:
    """Whether a module belongs to the public API of TensorFlow."""
    first, *rest = name.split(".")
    return first == "tensorflow" and not (rest and (FOLDER / rest[0]).is_dir())


def run_program() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(PROGRAM, "program.py", "exec"), names)
    return names


def test_a_program_gets_version_1_until_the_end_of_the_block() -> None:
    before = state()

    with as_tensorflow_1() as used, tf.Graph().as_default():
        made = run_program()

    assert made["w"].op.type == "VariableV2"
    assert state() == before
    assert used == UsedNames(
        {
            "tf.contrib.slim.fully_connected",
            "tf.contrib.layers.python.layers.initializers.xavier_initializer",
        },
        [],
    )
    assert tf.executing_eagerly()
    assert isinstance(tf.TensorShape([1])[0], int)


def test_everything_is_restored_after_an_error() -> None:
    before = state()

    with pytest.raises(Reached), as_tensorflow_1():
        raise Reached

    assert state() == before


def test_behavior_of_tensorflow_2_is_off() -> None:
    with as_tensorflow_1():
        off = Behavior.current()

    assert off == Behavior(False, False, False, False, False, False)


def test_a_program_may_enable_tensorflow_2_behavior() -> None:
    with as_tensorflow_1(), tf.Graph().as_default():
        import tensorflow as program_tf

        program_tf.enable_resource_variables()
        made = program_tf.get_variable("v", [])

    assert made.op.type == "VarHandleOp"
    assert Behavior.current() == Behavior()


def test_in_a_graph_of_the_caller() -> None:
    with tf.Graph().as_default():
        with as_tensorflow_1():
            made = tf1.get_variable("v", [])
        after = tf1.get_variable("w", [])

    assert (made.op.type, after.op.type) == ("VariableV2", "VarHandleOp")


def test_a_block_in_a_block() -> None:
    before = state()

    with as_tensorflow_1() as outer:
        import tensorflow as first

        with as_tensorflow_1() as inner:
            import tensorflow as second

            _ = second.contrib.layers.flatten
        import tensorflow as third

        _ = third.contrib.layers.l1_regularizer

    assert first is third
    assert second is not first
    assert inner.found == {"tf.contrib.layers.flatten"}
    assert outer.found == {"tf.contrib.layers.l1_regularizer"}
    assert state() == before


def test_two_blocks_in_sequence() -> None:
    for _ in range(2):
        with as_tensorflow_1() as used, tf.Graph().as_default():
            run_program()
        assert not used.missing


def test_no_warning_about_calls_of_this_package(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), as_tensorflow_1():
        assert not logging.getLogger("tensorflow").disabled

    assert not caplog.records
