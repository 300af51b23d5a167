"""TensorFlow's own log, caught in the process that prints it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from placement_checks import catch_log
from placement_checks.core.errors import InputError

tf1 = tf.compat.v1


def run(**options: bool) -> None:
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        variable = tf1.get_variable("w", [3])
        read = tf.identity(variable, name="read")
    config = tf1.ConfigProto(**options)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(variable.initializer)
        session.run(read)


def test_a_session_is_caught() -> None:
    with catch_log() as caught:
        run(log_device_placement=True)

    placement = caught.placement()

    assert [variable.name for variable in placement.variables] == ["w"]
    assert {"w", "read"} <= placement.ops.keys()
    assigned = placement.ops["w"].assigned
    assert assigned is not None
    assert assigned.short == "/device:CPU:0"


def test_a_session_without_a_log_gets_a_fix() -> None:
    with catch_log() as caught:
        run()

    with pytest.raises(InputError, match=r"ConfigProto\(log_device_placement=True\)"):
        caught.placement()
