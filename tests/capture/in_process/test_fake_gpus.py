"""A program finds the same number of GPUs by any function, and all patches are removed."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2

from placement_checks.capture.in_process.fake_gpus import (
    fake_gpu_count,
    visible_gpus,
    visible_limit,
)
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched

tf1 = tf.compat.v1
CONFIGS = {
    "tf": tf.config,
    "tf.compat.v1": tf1.config,
    "tf.compat.v1.compat.v1": tf1.compat.v1.config,
    "tf.compat.v2": tf.compat.v2.config,
}
# Modules that programs import, named like TensorFlow's.
device_lib = importlib.import_module("tensorflow.python.client.device_lib")
context = importlib.import_module("tensorflow.python.eager.context")


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def number_by_nvml() -> int:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    number = ctypes.c_uint()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(number)) == 0
    return number.value


def session_devices() -> int:
    with tf1.Session() as session:
        return sum(each.device_type == "GPU" for each in session.list_devices())


WAYS: dict[str, Callable[[], int]] = {
    "list_local_devices": lambda: sum(
        each.device_type == "GPU" for each in device_lib.list_local_devices()
    ),
    "list_devices": session_devices,
    "num_gpus": lambda: context.num_gpus(),
    "nvidia-ml": number_by_nvml,
}


@pytest.mark.parametrize("gpus", [0, 1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_the_number_of_gpus_by_each_function(way: str, gpus: int) -> None:
    with fake_gpu_count(gpus) as asked:
        assert not asked
        assert WAYS[way]() == gpus

    assert asked == {way}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("of", ["", "experimental"])
@pytest.mark.parametrize(
    ("way", "prefix"),
    [
        ("list_physical_devices", "/physical_device:"),
        ("list_logical_devices", "/device:"),
        ("get_visible_devices", "/physical_device:"),
    ],
)
def test_the_devices_of_each_configuration(config: Any, of: str, way: str, prefix: str) -> None:
    listing = getattr(getattr(config, of) if of else config, way)
    with fake_gpu_count(2) as asked:
        gpus, everything = listing("GPU"), listing()
        assert [each.name for each in listing("CPU")] == [f"{prefix}CPU:0"]

    assert [each.name for each in gpus] == [f"{prefix}GPU:0", f"{prefix}GPU:1"]
    assert {each.device_type for each in gpus} == {"GPU"}
    assert [each.name.removeprefix(prefix) for each in everything] == ["CPU:0", "GPU:0", "GPU:1"]
    assert asked == {way}
    assert listing("GPU") == []


def test_local_devices_come_as_tensorflow_lists_them() -> None:
    config = tf1.ConfigProto(device_count={"GPU": 1})
    with fake_gpu_count(2):
        everything = device_lib.list_local_devices()
        fewer = device_lib.list_local_devices(config)

    assert [each.name for each in everything] == [
        "/device:CPU:0",
        "/device:GPU:0",
        "/device:GPU:1",
    ]
    assert [each.name for each in fewer] == ["/device:CPU:0", "/device:GPU:0"]


@pytest.mark.parametrize("test", [tf.test, tf1.test, tf1.compat.v1.test])
def test_functions_of_tf_test(test: Any) -> None:
    with fake_gpu_count(2) as asked:
        assert test.is_gpu_available()
        assert test.is_gpu_available(True, (7, 0))
        assert not test.is_gpu_available(min_cuda_compute_capability=(99, 0))
        assert test.gpu_device_name() == "/device:GPU:0"
    with fake_gpu_count(0):
        assert not test.is_gpu_available()
        assert test.gpu_device_name() == ""

    assert asked == {"list_local_devices"}


def test_a_program_configures_its_gpus_freely() -> None:
    experimental = tf.config.experimental
    with fake_gpu_count(2):
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(gpus[0], "GPU")
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_visible_devices(gpus)
        for gpu in gpus:
            experimental.set_memory_growth(device=gpu, enable=True)
            tf.config.set_logical_device_configuration(
                gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=1024)] * 2
            )
        assert experimental.get_memory_growth(gpus[1])
        assert len(tf.config.get_logical_device_configuration(gpus[1])) == 2
        assert experimental.get_device_details(gpus[0])["compute_capability"] == (9, 0)
        assert experimental.get_memory_info("GPU:1") == {"current": 0, "peak": 0}
        experimental.reset_memory_stats("GPU:1")

        assert len(tf.config.get_visible_devices("GPU")) == 2
        assert len(tf.config.list_logical_devices("GPU")) == 2


def test_hidden_gpus_are_not_logical_devices() -> None:
    with fake_gpu_count(3):
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(gpus[1:], "GPU")

        assert tf.config.list_physical_devices("GPU") == gpus
        assert tf.config.get_visible_devices("GPU") == gpus[1:]
        logical = [each.name for each in tf.config.list_logical_devices("GPU")]
        assert logical == ["/device:GPU:0", "/device:GPU:1"]
        assert context.num_gpus() == 2
    with fake_gpu_count(3):
        assert context.num_gpus() == 3


def test_devices_other_than_gpus_are_tensorflows() -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = tf.config.get_logical_device_configuration(cpu)
    with fake_gpu_count(2):
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(cpu, "CPU")
        tf.config.set_visible_devices([cpu, gpus[0]])
        assert tf.config.get_logical_device_configuration(cpu) == logical
        with pytest.raises(ValueError, match="Cannot set memory growth on"):
            tf.config.experimental.set_memory_growth(cpu, True)
        with pytest.raises(ValueError, match="Unrecognized device"):
            tf.config.set_visible_devices(gpus[0], "CPU")


def test_the_gpus_of_the_machine_are_not_added() -> None:
    real = device_attributes_pb2.DeviceAttributes(name="/device:GPU:0", device_type="GPU")
    given: list[bytes] = []

    def four_gpus(_: Any) -> Callable[..., list[bytes]]:
        def list_devices(serialized: bytes) -> list[bytes]:
            given.append(serialized)
            config = tf1.ConfigProto.FromString(serialized)
            return [real.SerializeToString()] * config.device_count.get("GPU", 4)

        return list_devices

    def one_gpu(_: Any) -> Callable[..., list[Any]]:
        return lambda _self, _type=None: [
            tf.config.PhysicalDevice("/physical_device:GPU:7", "GPU")
        ]

    with (
        patched(Patch.LIST_LOCAL, four_gpus),
        patched(Patch.LIST_PHYSICAL, one_gpu),
        fake_gpu_count(2),
    ):
        assert len(device_lib.list_local_devices()) == 2
        names = [each.name for each in tf.config.list_physical_devices()]

    assert names == ["/physical_device:GPU:0", "/physical_device:GPU:1"]
    assert given


def test_asking_for_cpus_does_not_count_as_asking() -> None:
    with fake_gpu_count(2) as asked:
        tf.config.list_physical_devices("CPU")
        tf.config.set_visible_devices([], "GPU")

    assert not asked


def within(module: str) -> Callable[..., Any]:
    """A function of another module that asks for GPUs."""
    namespace: dict[str, Any] = {"__name__": module}
    exec("def ask(how, *about): return how(*about)", namespace)
    return cast(Callable[..., Any], namespace["ask"])


@pytest.mark.parametrize("module", ["keras.src.backend", "tensorflow.python.ops.ctc_ops"])
def test_tensorflow_and_keras_see_the_real_devices(module: str) -> None:
    ask = within(module)
    with fake_gpu_count(2) as asked:
        assert ask(tf.config.list_logical_devices, "GPU") == []
        assert ask(context.num_gpus) == 0
        assert [each.device_type for each in ask(device_lib.list_local_devices)] == ["CPU"]
        assert not asked
        assert len(within("tensorpack.utils.gpu")(tf.config.list_logical_devices, "GPU")) == 2
        assert asked


def test_a_traced_function_asks_on_behalf_of_the_program() -> None:
    found: list[int] = []

    @tf.function
    def traced() -> None:
        found.append(len(tf.config.list_physical_devices("GPU")))

    with fake_gpu_count(2) as asked:
        traced.get_concrete_function()

    assert found == [2]
    assert asked


def test_a_recurrent_layer_is_made_of_ops_that_cpus_have() -> None:
    with fake_gpu_count(2) as asked:
        tf.keras.layers.LSTM(4)(tf1.placeholder(tf.float32, [2, 3, 5]))

    types = {op.type for op in tf1.get_default_graph().get_operations()}
    assert not {name for name in types if "Cudnn" in name}
    assert not asked


def test_a_strategy_without_devices_asks_on_behalf_of_the_program() -> None:
    with fake_gpu_count(2) as asked:
        tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])
        assert not asked
        assert tf.distribute.MirroredStrategy().num_replicas_in_sync == 2
        assert asked
    with fake_gpu_count(3) as asked:
        strategy = tf.distribute.experimental.CentralStorageStrategy()
        assert strategy.num_replicas_in_sync == 3
    assert asked


def test_the_context_has_the_real_devices() -> None:
    start = within(context.__name__)
    with fake_gpu_count(2) as asked:
        assert start(context.context().list_physical_devices, "GPU") == []
        assert len(context.context().list_physical_devices("GPU")) == 2
    assert asked


def test_a_function_imported_before_the_block() -> None:
    list_devices = tf.config.list_physical_devices
    with fake_gpu_count(5):
        assert len(list_devices("GPU")) == 5


def test_nvml_answers_no_other_question() -> None:
    with fake_gpu_count(2):
        nvml = ctypes.cdll.LoadLibrary("libnvidia-ml.so.1")
        by_index: Any = nvml["nvmlDeviceGetHandleByIndex_v2"]
        by_index.argtypes = [ctypes.c_uint, ctypes.c_void_p]
        assert nvml.nvmlInitWithFlags(0) == 0
        assert by_index(0, ctypes.byref(ctypes.c_void_p())) == 3  # not supported
        assert nvml.nvmlShutdown() == 0


def test_other_libraries_are_loaded_as_usual() -> None:
    with fake_gpu_count(2) as asked:
        strlen = ctypes.CDLL(None).strlen
        strlen.argtypes = [ctypes.c_char_p]
        assert strlen(b"four") == 4
    assert not asked


def test_everything_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    loading = ctypes.CDLL.__init__
    with fake_gpu_count(2):
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert ctypes.CDLL.__init__ is loading
    assert tf.config.list_physical_devices("GPU") == []


def test_an_unset_variable_stays_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with fake_gpu_count(2):
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"

    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_block_within_another() -> None:
    with fake_gpu_count(2), fake_gpu_count(3) as inner:
        assert [WAYS[way]() for way in WAYS] == [3] * len(WAYS)
        assert tf.config.list_physical_devices("GPU")[2:]
    assert isinstance(inner, set)


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 1), ("3", 1), ("2, 3", 2), ("0,1,2", 2), ("", 0), ("-1", 0), ("0,-1,1", 1)],
)
def test_the_program_hides_gpus(value: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    with fake_gpu_count(2):
        os.environ["CUDA_VISIBLE_DEVICES"] = value
        found = {WAYS[way]() for way in ("list_local_devices", "list_devices", "num_gpus")}
    assert found == {number}
    limit = visible_limit()

    assert limit is not None
    assert min(2, limit.gpus) == number
    assert limit.setting == f"CUDA_VISIBLE_DEVICES={value!r}"


@pytest.mark.parametrize("value", ["0", "-1", ""])
def test_the_user_hides_no_fake_gpus(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with fake_gpu_count(2):
        assert len(tf.config.list_physical_devices("GPU")) == 2
    assert visible_limit() is None


def test_a_variable_that_is_set_too_late_has_no_effect() -> None:
    with fake_gpu_count(2):
        tf.config.list_physical_devices("GPU")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        assert len(tf.config.list_physical_devices("GPU")) == 2
        assert visible_limit() is None


def test_visible_devices_are_selected_from_the_listed_ones() -> None:
    with fake_gpu_count(2):
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[0], "GPU")
        assert visible_gpus() == [1]
    assert visible_limit() == (1, "CUDA_VISIBLE_DEVICES='1'")
