"""Names of TensorFlow's own modules that are elsewhere now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.loading.tensorflow_1 import moved_names
from placement_checks.loading.tf_internals import tensorflow_1_modules

Run = Callable[[str], dict[str, Any]]
tf1 = tf.compat.v1


def test_a_program_finds_them(run: Run) -> None:
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


def test_batch_normalisation_as_a_layer(run: Run) -> None:
    made = run(
        """
        from tensorflow.python.layers.normalization import BatchNormalization
        import tensorflow as tf
        same = BatchNormalization is tf.layers.BatchNormalization
        """
    )

    assert made["same"]


@pytest.mark.parametrize("module", moved_names.MOVED)
def test_each_module_is_there_and_has_them_only_in_the_block(module: str) -> None:
    owner = tensorflow_1_modules.internal_module(module)
    before = {*vars(owner)}

    with moved_names.moved_names(tf1):
        assert {*moved_names.MOVED[module]} <= {*vars(owner)}

    assert {*vars(owner)} == before
    assert not {*moved_names.MOVED[module]} <= before  # else it is needed no longer
