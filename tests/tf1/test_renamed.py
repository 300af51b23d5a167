"""Names that TensorFlow's own modules have no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.tf.patching import internal_module
from placement_checks.tf1 import renamed

Run = Callable[[str], dict[str, Any]]
tf1 = tf.compat.v1


def test_a_program_finds_the_names(run: Run) -> None:
    made = run(
        """
        from tensorflow.python import pywrap_tensorflow
        from tensorflow.python.framework import graph_util, ops
        from tensorflow.python.ops import array_ops, control_flow_ops, functional_ops, random_ops
        from tensorflow.python.ops import variables, variable_scope
        from tensorflow.python.util import nest
        """
    )

    assert made["ops"].Tensor is tf.Tensor
    assert made["ops"].IndexedSlices is tf.IndexedSlices
    assert made["array_ops"].stack is tf1.stack
    assert made["control_flow_ops"].while_loop is tf1.while_loop
    assert made["control_flow_ops"].Assert is tf1.Assert
    assert made["functional_ops"].map_fn is tf1.map_fn
    assert made["random_ops"].random_crop is tf1.random_crop
    assert made["variables"].VariableV1 is tf1.Variable
    assert made["variable_scope"].variable is tf1.Variable
    assert made["variable_scope"].resource_variables_enabled() is False
    assert made["pywrap_tensorflow"].NewCheckpointReader is tf1.train.NewCheckpointReader
    assert made["nest"].is_sequence([1])
    convert = made["graph_util"].convert_variables_to_constants
    assert convert is tf1.graph_util.convert_variables_to_constants


# Many programs contain a copy of this.
DEVICE_SETTER = """
    import tensorflow as tf
    from tensorflow.python.framework import device as pydev

    class ParamServerDeviceSetter(object):
        def __init__(self, worker_device, ps_devices):
            self.ps_devices = ps_devices
            self.worker_device = worker_device
            self.ps_sizes = [0] * len(ps_devices)

        def __call__(self, op):
            if op.device:
                return op.device
            if op.type not in ["Variable", "VariableV2"]:
                return self.worker_device
            index = self.ps_sizes.index(min(self.ps_sizes))
            self.ps_sizes[index] += op.outputs[0].get_shape().num_elements()
            current = pydev.DeviceSpec.from_string(op.device or "")
            current.merge_from(pydev.DeviceSpec.from_string(self.ps_devices[index]))
            return current.to_string()

    setter = ParamServerDeviceSetter("/gpu:1", ["/cpu:0", "/gpu:0"])
    with tf.device(setter):
        first = tf.get_variable("first", [4])
        second = tf.get_variable("second", [4])
        total = first + second
    with tf.device(tf.train.replica_device_setter(worker_device="/job:worker", ps_tasks=2)):
        on_server = tf.get_variable("third", [4])
"""


def test_a_device_setter_of_version_1(run: Run) -> None:
    made = run(DEVICE_SETTER)

    assert made["first"].device == "/device:CPU:0"
    assert made["second"].device == "/device:GPU:0"
    assert made["total"].device == "/gpu:1"
    assert made["on_server"].device == "/job:ps/task:0"


def test_device_specs_have_version_1_only_in_the_block() -> None:
    device = internal_module("framework.device")
    assert device is not None
    before = device.DeviceSpec

    with renamed.moved_names(tf1):
        assert device.DeviceSpec is tf1.DeviceSpec

    assert device.DeviceSpec is before
    assert before is not tf1.DeviceSpec


def test_batch_normalization_as_a_layer(run: Run) -> None:
    made = run(
        """
        from tensorflow.python.layers.normalization import BatchNormalization
        import tensorflow as tf
        same = BatchNormalization is tf.layers.BatchNormalization
        """
    )

    assert made["same"]


@pytest.mark.parametrize("module", renamed.MOVED)
def test_each_module_has_the_names_only_in_the_block(module: str) -> None:
    owner = internal_module(module)
    before = {*vars(owner)}

    with renamed.moved_names(tf1):
        assert {*renamed.MOVED[module]} <= {*vars(owner)}

    assert {*vars(owner)} == before
    assert not {*renamed.MOVED[module]} <= before  # else the entry can be removed
