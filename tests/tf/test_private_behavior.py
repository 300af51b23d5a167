"""Every private name of TensorFlow behaves as expected.

These tests run in graphs, because eager code and sessions fix the devices of the process. Tests of
eager code are in `tests/capture/eager/test_private_behavior.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.tf import (
    distribution,
    eager,
    keras,
    process_state,
)
from placement_checks.tf.keras import legacy_keras, legacy_module
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import all_patched, internal_module, patched
from placement_checks.tf.process_state import Behavior

pytestmark = pytest.mark.nightly

tf1 = tf.compat.v1
KERAS_2 = not hasattr(tf.keras.optimizers.Optimizer, "apply")


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


@contextlib.contextmanager
def restored() -> Iterator[None]:
    try:
        yield
    finally:
        Behavior().restore()


class Calls:
    """Patches a function: records its arguments, and calls the original."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def __call__(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.noted.append(args)
            return original(*args, **kwargs)

        return noting


@pytest.mark.usefixtures("graph")
def test_one_function_takes_all_gradients_of_graphs() -> None:
    x = tf1.get_variable("x", [])
    calls = Calls()

    with patched(Patch.GRADIENTS, calls):
        tf1.gradients(x * x, x)
        tf1.train.GradientDescentOptimizer(0.1).compute_gradients(x + x, [x])
    tf1.gradients(x, x)

    assert [target.op.type for target, *_ in calls.noted] == ["Mul", "AddV2"]


def test_keras_numbers_its_layers_by_a_counter_that_is_cleared() -> None:
    dense = tf.keras.layers.Dense
    names = keras.keras_name_counter()
    if KERAS_2:
        assert names is None
        return
    assert names is not None
    before = dict(names)
    names.clear()

    assert [dense(1).name, dense(1).name] == ["dense", "dense_1"]
    names.clear()
    assert dense(1).name == "dense"
    names.clear()
    names.update(before)


@pytest.mark.skipif(KERAS_2, reason="Keras 2 receives the variables")
@pytest.mark.usefixtures("graph")
def test_an_optimizer_of_keras_has_its_variables() -> None:
    optimizer = tf.keras.optimizers.SGD()
    variables = [tf1.get_variable(name, []) for name in ("b", "a")]

    optimizer.build(variables)

    assert [variable.name for variable in keras.optimizer_variables(optimizer)] == ["b:0", "a:0"]


def test_whether_tensorflow_2_behavior_is_on() -> None:
    assert Behavior.current().v2_behavior
    with restored():
        tf1.disable_v2_behavior()
        assert not Behavior.current().v2_behavior


def begins_eagerly() -> bool:
    """Whether a new thread starts with eager execution."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(tf.executing_eagerly()))
    thread.start()
    thread.join()
    return found[0]


def test_whether_threads_start_eagerly() -> None:
    assert process_state.is_eager_by_default()
    with restored():
        tf1.disable_eager_execution()
        assert not process_state.is_eager_by_default()
        assert not begins_eagerly()

        process_state.make_eager_by_default()

        assert process_state.is_eager_by_default()
        assert begins_eagerly()
        process_state.set_eager(True)


def test_whether_tensors_compare_their_elements() -> None:
    assert Behavior.current().tensor_equality
    with restored():
        tf1.disable_tensor_equality()
        assert not Behavior.current().tensor_equality


def test_whether_branches_are_functions() -> None:
    assert Behavior.current().control_flow_v2
    with restored():
        tf1.disable_control_flow_v2()
        assert not Behavior.current().control_flow_v2


def test_eager_execution_of_this_thread() -> None:
    assert process_state.is_eager()
    process_state.set_eager(False)
    assert not tf.executing_eagerly()
    process_state.set_eager(True)
    assert tf.executing_eagerly()


def test_an_open_graph_is_closed() -> None:
    before = process_state.open_graph_count()
    scope = tf.Graph().as_default()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(scope))  # its destructor would end another one
    graph = scope.__enter__()
    assert process_state.open_graph_count() == before + 1
    assert tf1.get_default_graph() is graph

    process_state.close_graph()
    process_state.set_eager(True)

    assert process_state.open_graph_count() == before
    with tf.init_scope():
        assert tf.executing_eagerly()
        assert tf1.get_default_graph() is not graph


def test_the_outermost_default_graph() -> None:
    tf1.reset_default_graph()
    assert process_state.global_graph() is None

    made = tf1.get_default_graph()

    assert process_state.global_graph() is made


def test_the_seed_of_eager_code() -> None:
    before = process_state.global_seed()
    tf.random.set_seed(7)
    assert process_state.global_seed() == 7

    with tf.Graph().as_default() as graph:
        process_state.set_global_seed(before)

    assert process_state.global_seed() == before
    assert graph.seed is None


def test_device_scopes_of_eager_code_are_opened_by_one_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        sys.modules["tensorflow.python.eager.context"], "ensure_initialized", lambda: None
    )

    def open_device(_self: object, name: str) -> contextlib.nullcontext[None]:
        opened.append(name)
        return contextlib.nullcontext()

    with patched(Patch.EAGER_SCOPE, lambda _: open_device):
        with tf.device("/gpu:1"):
            pass

    assert opened == ["/gpu:1"]


@pytest.mark.usefixtures("graph")
def test_mirrored_strategy_asks_for_all_local_devices() -> None:
    with patched(Patch.MIRRORED_DEVICES, lambda _: lambda: ("/cpu:0",)):
        strategy = tf.distribute.MirroredStrategy()

    assert strategy.num_replicas_in_sync == 1
    with (
        patched(Patch.MIRRORED_DEVICES, lambda _: lambda: ()),
        pytest.raises(AssertionError, match="empty"),
    ):
        tf.distribute.MirroredStrategy()


@pytest.mark.usefixtures("graph")
def test_central_storage_strategy_asks_for_as_many_local_devices_as_there_are_gpus() -> None:
    calls = Calls()

    with patched(Patch.CENTRAL_DEVICES, calls):
        tf.distribute.experimental.CentralStorageStrategy()

    assert calls.noted == [(len(tf.config.list_logical_devices("GPU")),)]


@pytest.mark.usefixtures("graph")
def test_each_strategy_makes_collective_keys() -> None:
    calls = Calls()

    with patched(Patch.NEW_KEYS, calls):
        tf.distribute.MirroredStrategy(["/cpu:0"])

    assert calls.noted


@pytest.mark.parametrize(
    ("patch", "ask"),
    [
        (Patch.LIST_PHYSICAL, lambda: tf.config.list_physical_devices("GPU")),
        (Patch.LIST_LOGICAL, lambda: tf.config.list_logical_devices("GPU")),
        (Patch.GET_VISIBLE, lambda: tf.config.get_visible_devices("GPU")),
        (Patch.SET_VISIBLE, lambda: tf.config.set_visible_devices([], "GPU")),
        (Patch.GET_MEMORY_GROWTH, lambda: tf.config.experimental.get_memory_growth("gpu")),
        (Patch.SET_MEMORY_GROWTH, lambda: tf.config.experimental.set_memory_growth("gpu", True)),
        (
            Patch.GET_LOGICAL,
            lambda: tf.config.get_logical_device_configuration("gpu"),
        ),
        (
            Patch.SET_LOGICAL,
            lambda: tf.config.set_logical_device_configuration("gpu", []),
        ),
        (Patch.DEVICE_DETAILS, lambda: tf.config.experimental.get_device_details("gpu")),
        (Patch.MEMORY_INFO, lambda: tf.config.experimental.get_memory_info("gpu")),
        (Patch.MEMORY_STATS, lambda: tf.config.experimental.reset_memory_stats("gpu")),
        (Patch.NUM_GPUS, lambda: sys.modules["tensorflow.python.eager.context"].num_gpus()),
    ],
)
def test_the_configuration_asks_the_context(patch: Patch, ask: Callable[[], Any]) -> None:
    asked: list[Patch] = []

    def noting(_: Any) -> Callable[..., None]:
        return lambda *_, **__: asked.append(patch)

    with patched(patch, noting):
        ask()
    assert asked == [patch]


def test_local_devices_are_listed_by_one_function() -> None:
    device_lib = sys.modules["tensorflow.python.client.device_lib"]
    calls = Calls()

    with patched(Patch.LIST_LOCAL, calls):
        found = device_lib.list_local_devices(tf1.ConfigProto(device_count={"CPU": 2}))

    assert [each.name for each in found] == ["/device:CPU:0", "/device:CPU:1"]
    ((given,),) = calls.noted
    assert tf1.ConfigProto.FromString(given).device_count["CPU"] == 2


@pytest.mark.usefixtures("graph")
def test_listed_devices_of_sessions_can_be_copied() -> None:
    calls = Calls()
    with patched(Patch.LIST_OF_SESSION, calls), tf1.Session() as session:
        cpu, *_ = session.list_devices()

    assert calls.noted == [(session,)]
    made = type(cpu)("/device:GPU:0", "GPU", 1, 2)
    assert (made.name, made.device_type, made.memory_limit_bytes, made.incarnation) == (
        "/device:GPU:0",
        "GPU",
        1,
        2,
    )


@pytest.mark.parametrize(
    ("ask", "function"),
    [
        ("select_cross_device_ops", "cross_device_ops"),
        ("_make_collective_ops_with_fallbacks", "mirrored_strategy"),
    ],
)
def test_strategies_choose_a_reduction_by_the_devices(ask: str, function: str) -> None:
    assert ask in eager.REDUCTION_CHOOSERS
    module = sys.modules[f"{eager.STRATEGY_MODULES}{function}"]
    assert f"def {ask}(" in Path(str(module.__file__)).read_text()


@pytest.mark.parametrize("name", sorted(eager.DEVICE_QUERY_MODULES))
def test_programs_ask_through_modules_that_exist(name: str) -> None:
    assert name in sys.modules


def test_a_function_counts_gpus() -> None:
    module, name = eager.NUM_GPUS_FUNCTION
    assert getattr(sys.modules[module], name).__code__.co_name == name


@pytest.mark.parametrize(
    ("patch", "use"),
    [
        (Patch.C_DELETE, lambda: tf.io.gfile.remove("x")),
        (Patch.C_DELETE_TREE, lambda: tf1.gfile.DeleteRecursively("x")),
        (Patch.C_RENAME, lambda: tf1.gfile.Rename("x", "y", overwrite=True)),
        (Patch.C_COPY, lambda: tf.io.gfile.copy("x", "y", overwrite=True)),
        (Patch.C_WRITE, lambda: tf.io.gfile.GFile("x", "w").write("")),
    ],
)
def test_gfile_reaches_files_by(patch: Patch, use: Callable[[], Any]) -> None:
    given: list[Any] = []

    class Writable:
        def __init__(self, *args: Any) -> None:
            given.append(args)

        def append(self, text: bytes) -> None:
            pass

    with patched(patch, lambda _: Writable):
        use()

    expected: dict[Patch, tuple[Any, ...]] = {
        Patch.C_RENAME: (b"y", True),
        Patch.C_COPY: (b"y", True),
        Patch.C_WRITE: (b"w",),
    }
    assert given == [(b"x", *expected.get(patch, ()))]


def test_servers_call_functions_of_c(capfd: pytest.CaptureFixture[str]) -> None:
    called: list[Patch] = []

    def noting(patch: Patch) -> Callable[..., Any]:
        return lambda _: lambda *_: called.append(patch) or patch  # type: ignore[func-returns-value]

    start = [Patch.C_NEW_SERVER, Patch.C_START_SERVER, Patch.C_SERVER_TARGET, Patch.C_JOIN_SERVER]
    with all_patched({patch: noting(patch) for patch in start}):
        server = tf.distribute.Server({"worker": ["localhost:0"]})
        assert server.target is Patch.C_SERVER_TARGET
        server.join()
        distribution.forget_server(server)
        del server
    with patched(Patch.C_STOP_SERVER, noting(Patch.C_STOP_SERVER)):
        server = tf.distribute.Server.create_local_server(start=False)
        del server

    assert called == [*start, Patch.C_STOP_SERVER]
    assert "Exception ignored" not in capfd.readouterr().err


def test_a_module_of_tensorflow() -> None:
    assert internal_module("framework.ops").Graph is tf.Graph  # type: ignore[union-attr]
    assert internal_module("ops.no_such_ops") is None
    assert internal_module("no_such.ops") is None


@pytest.mark.usefixtures("graph")
def test_keras_2_has_the_layers_and_cells_of_tensorflow_1() -> None:
    package = "keras" if KERAS_2 else "tf_keras"

    x = tf1.placeholder(tf.float32, [2, 3])
    dense = legacy_module(package, "layers").dense(x, 4, name="head")
    cell = legacy_module(package, "rnn_cell").GRUCell(4)

    assert dense.name == "head/BiasAdd:0"
    assert cell.output_size == 4
    with pytest.raises(InputError, match=r"has no no_such_keras\.api\._v1\.keras, which"):
        legacy_keras("no_such_keras")


def test_layers_look_for_batch_normalization_in_one_module() -> None:
    layers = internal_module("layers.normalization")

    class Made:
        BatchNormalization = "made"

    with patched(Patch.V1_NORMALIZATION, lambda _: lambda: None):
        with pytest.raises(AttributeError):
            _ = layers.BatchNormalization  # type: ignore[union-attr]
    with patched(Patch.V1_NORMALIZATION, lambda _: Made):
        assert layers.BatchNormalization == "made"  # type: ignore[union-attr]


def test_device_specs_have_tensorflows_initial_version() -> None:
    device = internal_module("framework.device")

    with patched(Patch.V1_DEVICE_SPEC, lambda _: tf1.DeviceSpec):
        assert device.DeviceSpec is tf1.DeviceSpec  # type: ignore[union-attr]
        assert device.canonical_name("/gpu:1") == "/device:GPU:1"  # type: ignore[union-attr]
    assert device.DeviceSpec is tf.DeviceSpec  # type: ignore[union-attr]


def test_attributes_of_eager_tensors() -> None:
    assert eager.eager_tensors_have("numpy")
    assert not eager.eager_tensors_have("no_such_name")
    with tf.Graph().as_default():
        assert not hasattr(tf.constant(1.0), "numpy")
