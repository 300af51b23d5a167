"""The private attributes of eager objects that the package uses exist.

How they behave is checked each night, in `test_private_behavior.py`.
"""

from __future__ import annotations

import tensorflow as tf

from placement_checks.tf import distribution, eager
from placement_checks.tf.simulated_devices import configure_logical_cpus

CPUS = ["/cpu:1", "/cpu:2"]


def test_variables_of_strategies() -> None:
    configure_logical_cpus(3)
    mirrored = tf.distribute.MirroredStrategy(CPUS, tf.distribute.ReductionToOneDevice())
    central = tf.distribute.experimental.CentralStorageStrategy(CPUS, "/cpu:0")

    for strategy, expected in ((mirrored, CPUS), (central, ["/cpu:0"])):
        with strategy.scope():
            variable = tf.Variable(1.0)
        handles = [eager.variable_handle(value) for value in distribution.replica_values(variable)]

        assert [handle.device.lower().rpartition("device")[2] for handle in handles] == [
            cpu.replace("/", ":") for cpu in expected
        ]
        assert distribution.variable_strategy(variable) is strategy
    assert distribution.has_eager_runtime_started()


def test_functions_called_by_a_function() -> None:
    inner = tf.function(tf.tanh)
    outer = tf.function(lambda x: inner(x) + 1.0).get_concrete_function(tf.constant(1.0))

    (body,) = eager.traced_functions(outer.graph).values()

    assert "Tanh" in {op.type for op in body.get_operations()}
    assert eager.eager_device() == ""
