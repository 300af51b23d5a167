"""CPU devices that simulate GPUs."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils

from placement_checks.run import runnable
from placement_checks.run.runnable import full_precision, gpu_scope
from placement_checks.run.simulated_gpus import simulated_gpus
from placement_checks.tf.simulated_devices import to_simulated

tf1 = tf.compat.v1


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("", ""),
        ("/cpu:0", "/cpu:0"),
        ("CPU", "/device:CPU:0"),
        ("/job:ps/device:CPU:*", "/job:ps/device:CPU:0"),
        ("/gpu:0", "/device:CPU:1"),
        ("/job:worker/task:1/device:GPU:3", "/job:worker/task:1/device:CPU:4"),
    ],
)
def test_gpu_i_becomes_cpu_i_plus_1_and_the_host_stays(device: str, expected: str) -> None:
    assert to_simulated(device) == expected


def test_a_cpu_without_index_is_the_host_in_the_scope_of_a_gpu() -> None:
    """TensorFlow creates queues in the scope ``CPU``, which completes the scope of a GPU."""
    with tf.Graph().as_default(), simulated_gpus(2, devices="simulated"), tf.device("/gpu:1"):
        queue = tf1.FIFOQueue(4, [tf.float32])

    assert queue.queue_ref.device == "/device:CPU:0"


def test_towers_run_apart_and_soft_placement_stays_off() -> None:
    with tf.Graph().as_default(), gpu_scope(2, devices="simulated") as config:
        with tf.device("/gpu:0"):
            x = tf1.placeholder(tf.float32, [])
            one = tf.sqrt(x)
        with tf.device("/gpu:1"):
            two = one + 1
        options = tf1.RunOptions(output_partition_graphs=True)
        metadata = tf1.RunMetadata()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf1.Session(config=config) as session:
            assert session.run(two, {x: 4.0}, options, metadata) == 3.0

    ran = {node.name: node.device for part in metadata.partition_graphs for node in part.node}
    assert ran[one.op.name].endswith("CPU:1")
    assert ran[two.op.name].endswith("CPU:2")
    assert not config.allow_soft_placement


def test_real_gpus_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement_checks.run.runnable.usable_gpus", lambda: 2)
    with tf.Graph().as_default(), gpu_scope(2) as config, tf.device("/gpu:1"):
        x = tf1.placeholder(tf.float32)

    assert x.op.device == "/device:GPU:1"
    assert dict(config.device_count) == {}


@pytest.mark.parametrize(
    ("here", "found", "usable", "clause"),
    [
        (0, 0, 0, "this machine has none"),
        (2, 2, 2, "this machine has 2"),
        (1, 2, 1, "this machine has 1"),
        (2, 0, 0, "TensorFlow finds only 0 of the 2 GPUs of this machine"),
    ],
)
def test_gpus_that_tensorflow_finds(
    monkeypatch: pytest.MonkeyPatch, here: int, found: int, usable: int, clause: str
) -> None:
    """Without the libraries of CUDA, TensorFlow finds no GPU; others may be hidden from it."""
    monkeypatch.setattr(runnable, "local_gpus", lambda: here)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [object()] * found)

    assert (runnable.usable_gpus(), runnable.gpus_found()) == (usable, clause)
    assert runnable.uses_simulated(2) == (usable < 2)
    assert runnable.uses_simulated(1, "simulated")


@pytest.mark.parametrize("enabled", [True, False])
def test_float32_is_float32_for_a_while(enabled: bool) -> None:
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(enabled)
    try:
        with full_precision():
            assert not settings.tensor_float_32_execution_enabled()
        assert settings.tensor_float_32_execution_enabled() is enabled
    finally:
        settings.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize("before", [None, "1"])
def test_cudnn_searches_no_algorithm_for_a_while(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    name = "TF_CUDNN_USE_AUTOTUNE"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with full_precision():
        assert os.environ[name] == "0"
    assert os.environ.get(name) == before


def test_strategies_on_gpus_use_different_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runnable, "usable_gpus", lambda: 2)

    def first_key() -> int:
        keys = cross_device_utils.CollectiveKeys()
        return int(keys.get_group_key(["/gpu:0", "/gpu:1"]))

    assert first_key() == first_key()
    with simulated_gpus(2):
        assert first_key() != first_key()
