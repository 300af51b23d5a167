"""Results of skipped runs, and sessions for GPUs on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.capture.in_process.sessions import with_soft_placement, zeros_for

tf1 = tf.compat.v1


def test_a_session_for_gpus_runs_on_the_cpu() -> None:
    written = tf1.ConfigProto()
    written.gpu_options.visible_device_list = "0,1"
    written.gpu_options.allow_growth = True
    before = written.SerializeToString()

    config = with_soft_placement(written)

    assert config.allow_soft_placement
    assert config.gpu_options.visible_device_list == ""
    assert config.gpu_options.allow_growth
    rewrites = config.graph_options.rewrite_options
    assert config.graph_options.place_pruned_graph
    assert rewrites.cpu_layout_conversion == rewrites.NCHW_TO_NHWC
    assert written.SerializeToString() == before


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [
        (tf.float32, [], 0.0),
        (tf.float32, [2, None], [[0.0], [0.0]]),
        (tf.int64, None, 0),
        (tf.string, [], b""),
        (tf.string, [None], []),
        (tf.string, [2], [b"", b""]),
    ],
)
def test_results_are_zeros(dtype: Any, shape: Any, value: Any) -> None:
    with tf.Graph().as_default():
        made = zeros_for(tf1.placeholder(dtype, shape))

    assert getattr(made, "tolist", lambda: made)() == value
    assert isinstance(made, np.ndarray) == isinstance(value, list)
    assert isinstance(made, bytes) or made.dtype == dtype.as_numpy_dtype


def test_a_reference_has_the_values_of_its_dtype() -> None:
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", [2], use_resource=False)

        assert zeros_for(variable.op.outputs[0]).dtype == "float32"
