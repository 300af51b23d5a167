"""Eager code, functions and strategies that name GPUs run on logical CPUs.

Each test has its own process, because TensorFlow creates its devices once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.forked import run_forked

EAGER = """
import tensorflow as tf
from placement_checks import simulated_gpus

def short(tensor):
    return tensor.device.rpartition(":")[0][-3:] + tensor.device[-2:]

with simulated_gpus(2, devices="simulated"):
    with tf.device("/gpu:1"):
        x = tf.random.normal([3, 3])
    @tf.function
    def apart(x):
        with tf.device("/gpu:0"):
            y = x @ x
        with tf.device(tf.DeviceSpec(device_type="GPU", device_index=1)):
            return y + 1
    apart(x)
    strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])
    with strategy.scope():
        w = tf.Variable(tf.ones([3]))
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.device(lambda op: "/gpu:1"):
        z = tf.compat.v1.placeholder(tf.float32)
    try:
        with tf.device("/gpu:7"):
            tf.constant(1.0) + 1
    except tf.errors.InvalidArgumentError:
        print("GPU 7 is missing")
    print(short(x), [short(copy) for copy in w.values], z.op.device)
with tf.device("/gpu:1"):
    print(short(tf.constant(1.0) + 1), tf.config.get_soft_device_placement())
"""

STRATEGIES = """
import json
import numpy as np
import tensorflow as tf
from placement_checks import simulated_gpus

def fitted(width):
    strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])
    with strategy.scope():
        w = tf.Variable(tf.ones([width]))
    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w * w)
            total = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, w))
            w.assign_sub(0.25 * total)
            return loss
        return strategy.run(replica)
    step()
    return [copy.numpy().tolist() for copy in w.values]

def recurrent():
    layer = tf.keras.layers.LSTM(3)
    return tf.function(lambda x: layer(x))(np.ones([2, 4, 3], np.float32)).shape.as_list()

def asked():
    mirrored = tf.distribute.MirroredStrategy()
    central = tf.distribute.experimental.CentralStorageStrategy()
    with mirrored.scope():
        copies = [copy.device[-5:] for copy in tf.Variable(1.0).values]
    return {
        "mirrored": [device[-5:] for device in mirrored.extended.worker_devices],
        "copies": copies,
        "central": [device[-5:] for device in central.extended.worker_devices],
        "central holds": [device[-5:] for device in central.extended.parameter_devices],
        "listed": len(tf.config.list_logical_devices("GPU")),
    }

with simulated_gpus(2, devices="simulated"):
    results = {"fitted": [fitted(2), fitted(3)], **asked(), "recurrent": recurrent()}
with simulated_gpus(2, devices="simulated"):
    results["fitted"].append(fitted(1))
results["outside"] = asked()
print(json.dumps(results))
"""

LATE = """
import tensorflow as tf
from placement_checks import PlacementError, simulated_gpus

tf.constant(1) + 1
try:
    with simulated_gpus(2, devices="simulated"):
        pass
except PlacementError as error:
    print(error)
"""


def printed_lines(program: str) -> list[str]:
    done = run_forked(["-c", program])
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("INFO:")]


@pytest.fixture(scope="module")
def simulated() -> list[str]:
    """The results of eager code and strategies on two simulated GPUs, in one process."""
    return printed_lines(EAGER + STRATEGIES)


def test_ops_on_gpus_run_on_logical_cpus_and_state_is_restored(
    simulated: list[str],
) -> None:
    assert simulated[:-1] == [
        "GPU 7 is missing",
        "CPU:2 ['CPU:1', 'CPU:2'] /device:CPU:2",
        "CPU:0 True",
    ]


@pytest.fixture(scope="module")
def strategies(simulated: list[str]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(simulated[-1])
    return found


def test_strategies_of_other_shapes_follow_one_another(strategies: Mapping[str, Any]) -> None:
    """Each strategy adds up the gradients of two replicas, 2 each: rate 0.25, start 1."""
    assert strategies["fitted"] == [[[0.0] * width] * 2 for width in (2, 3, 1)]


def test_mirrored_strategy_without_devices_uses_simulated_gpus(
    strategies: Mapping[str, Any],
) -> None:
    assert strategies["mirrored"] == ["GPU:0", "GPU:1"]
    assert strategies["copies"] == ["CPU:1", "CPU:2"]
    assert strategies["outside"]["mirrored"] == ["CPU:0", "CPU:1", "CPU:2"]


def test_central_storage_without_devices_uses_simulated_gpus(
    strategies: Mapping[str, Any],
) -> None:
    assert strategies["central"] == ["GPU:0", "GPU:1"]
    assert strategies["central holds"] == ["CPU:0"]
    assert strategies["outside"]["central"] == ["CPU:0"]


def test_listed_gpus_are_empty_when_kernels_are_chosen(
    strategies: Mapping[str, Any],
) -> None:
    """Keras would run its recurrent layers by cuDNN."""
    assert strategies["listed"] == 0
    assert strategies["recurrent"] == [2, 3]


def test_a_late_call_is_an_error_with_its_fix() -> None:
    assert printed_lines(LATE) == [
        "2 simulated GPUs: TensorFlow has already started with 1 logical CPU; 3 are required; run "
        "pytest with --placement-gpus=2, or open simulated_gpus before anything runs"
    ]


def test_the_option_of_the_plugin_comes_before_a_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import importlib.util\n"
        "importlib.util.find_spec('tensorflow')  # others only ask whether it is installed\n"
        "import tensorflow as tf\n"
        "tf.constant(1) + 1\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import tensorflow as tf\n"
        "from placement_checks import simulated_gpus\n"
        "def test_it():\n"
        "    with simulated_gpus(3, devices='simulated'), tf.device('/gpu:2'):\n"
        "        assert (tf.constant(1) + 1).device.endswith('CPU:3')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", str(tmp_path), "-p", "no:cacheprovider"]

    done = subprocess.run(
        [*command, "--placement-gpus=3"], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("gpus", [-1, 300])
def test_the_option_takes_a_number_of_gpus(pytester: pytest.Pytester, gpus: int) -> None:
    result = pytester.runpytest_inprocess(f"--placement-gpus={gpus}")

    result.stderr.fnmatch_lines([f"ERROR: --placement-gpus={gpus}: *"])
