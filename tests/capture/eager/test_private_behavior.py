"""Private names of TensorFlow for eager code behave as expected."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tf.test_private_behavior import KERAS_2, Calls

from placement_checks.tf import distribution, eager, keras
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched
from placement_checks.tf.simulated_devices import configure_logical_cpus

pytestmark = pytest.mark.nightly

CPUS = ["/cpu:1", "/cpu:2"]


@pytest.fixture(scope="module", autouse=True)
def devices() -> None:
    configure_logical_cpus(3)


@pytest.fixture
def mirrored() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(CPUS, tf.distribute.ReductionToOneDevice())


@pytest.fixture
def central() -> tf.distribute.Strategy:
    return tf.distribute.experimental.CentralStorageStrategy(CPUS, "/cpu:0")


def variable_in(strategy: tf.distribute.Strategy, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(1.0, name="w", **options)


def test_every_call_of_a_traced_function_ends_in_one_method() -> None:
    w = tf.Variable(2.0)
    inner = tf.function(lambda x: x * w)
    outer = tf.function(lambda x: inner(x) + 1.0)
    seen: list[tuple[Any, Any, Any]] = []

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
            if tf.executing_eagerly():
                seen.append((function, tensor_inputs, captured_inputs))
            return original(function, tensor_inputs, captured_inputs)

        return call

    with patched(Patch.CALL, noting):
        outer(tf.constant(3.0))
        outer(tf.constant(3.0))
        outer.get_concrete_function(tf.constant(3.0))(tf.constant(4.0))

    assert [[each.numpy() for each in given] for _, given, _ in seen] == [[3.0], [3.0], [4.0]]
    function, _, captured = seen[0]
    assert captured[0] is eager.variable_handle(w)
    assert [each.op.type for each in function.graph.inputs] == ["Placeholder", "Placeholder"]


def test_a_function_that_creates_variables_has_a_name() -> None:
    made: list[Any] = []

    @tf.function
    def step(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(x))  # so that it cannot be made before the step
        return made[0] * x

    names: list[str] = []

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
            names.append(function.graph.name)
            return original(function, tensor_inputs, captured_inputs)

        return call

    with patched(Patch.CALL, noting):
        step(tf.constant(1.0))

    assert eager.VARIABLE_CREATING_FUNCTION in names


def test_the_called_functions_of_a_function() -> None:
    inner = tf.function(tf.tanh)
    outer = tf.function(lambda x: inner(x) + 1.0).get_concrete_function(tf.constant(1.0))

    called = eager.traced_functions(outer.graph)

    ((name, body),) = called.items()
    assert name in {each.signature.name for each in outer.graph.as_graph_def().library.function}
    assert "Tanh" in {op.type for op in body.get_operations()}


def test_all_variables_are_created_by_one_constructor(
    mirrored: tf.distribute.Strategy,
) -> None:
    calls = Calls()
    made: list[Any] = []

    def makes() -> Any:
        if not made:
            made.append(tf.Variable(1.0, name="lazy"))
        return made[0] + 1.0

    with patched(Patch.NEW_VARIABLE, calls):
        tf.Variable(1.0, name="eager")
        tf.function(makes)()
        variable_in(mirrored)

    names = [variable.name.partition(":")[0] for variable, *_ in calls.noted]
    assert names == ["eager", "lazy", "w", "w/replica_1"]


def test_a_distributed_variable_has_a_handle_per_replica(
    mirrored: tf.distribute.Strategy,
) -> None:
    parts = distribution.replica_values(variable_in(mirrored))

    handles = list(map(eager.variable_handle, parts))
    assert ["CPU:1" in handles[0].device, "CPU:2" in handles[1].device] == [True, True]
    assert {handle.dtype for handle in handles} == {tf.resource}


def test_handles_are_created_by_one_function() -> None:
    calls = Calls()

    with patched(Patch.NEW_HANDLE, calls):
        tf.Variable([1, 2])

    ((shape, dtype, *_),) = calls.noted
    assert (tuple(shape), dtype) == ((2,), tf.int32)


def test_distributed_variables_consist_of_variables(
    mirrored: tf.distribute.Strategy, central: tf.distribute.Strategy
) -> None:
    calls = Calls()

    with patched(Patch.NEW_DISTRIBUTED, calls), patched(Patch.NEW_AGGREGATING, calls):
        of_both = [variable_in(mirrored), variable_in(central)]

    assert [made for made, *_ in calls.noted] == of_both
    assert [len(distribution.replica_values(made)) for made in of_both] == [2, 1]
    plain = tf.Variable(1.0)
    assert distribution.replica_values(plain) == (plain,)
    cut = ShardedVariable([tf.Variable([1.0]), tf.Variable([2.0])])
    assert [part.numpy() for part in distribution.replica_values(cut)] == [[1.0], [2.0]]


def test_the_specs_of_a_value_for_each_replica(mirrored: tf.distribute.Strategy) -> None:
    dataset = mirrored.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))

    @tf.function
    def step(rows: Any) -> None:
        mirrored.run(tf.identity, args=(rows,))

    (rows,) = step.get_concrete_function(next(iter(dataset))).structured_input_signature[0]

    assert len(distribution.replica_specs(rows)) == 2
    assert not distribution.replica_specs(tf.TensorSpec([2]))


def test_a_variable_knows_the_strategy_around_it(
    mirrored: tf.distribute.Strategy, central: tf.distribute.Strategy
) -> None:
    one = tf.distribute.OneDeviceStrategy("/cpu:1")

    for strategy in (mirrored, central, one):
        assert distribution.variable_strategy(variable_in(strategy)) is strategy
    assert distribution.variable_strategy(tf.Variable(1.0)) is None


def test_keras_variables_wrap_tensorflow_variables() -> None:
    calls = Calls()

    with keras.around_keras_variables(calls):
        layer = tf.keras.layers.Dense(1, name="head")
        layer.build([None, 2])

    paths = [variable.path for variable, *_ in calls.noted]
    assert paths == ([] if KERAS_2 else ["head/kernel", "head/bias"])
    assert isinstance(keras.tensorflow_variable(layer.kernel), tf.Variable)


def test_tapes_ask_one_function_for_the_gradient_of_an_op() -> None:
    calls = Calls()

    def gradient() -> Any:
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x)
        return tape.gradient(y, x)

    with eager.around_op_gradients(calls):
        gradient()
    gradient()

    assert [type for type, *_ in calls.noted] == ["Tanh"]


@pytest.mark.parametrize("name", ["mirrored", "central"])
def test_values_of_replicas_are_added_up_by_three_methods(
    name: str, request: pytest.FixtureRequest
) -> None:
    strategy = request.getfixturevalue(name)
    several, one, in_replica = Calls(), Calls(), Calls()

    def replica() -> Any:
        tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
        return tf.constant(1.0)

    @tf.function
    def step() -> Any:
        return strategy.reduce("sum", strategy.run(replica), axis=None)

    with (
        patched(Patch.REDUCE_SEVERAL, several),
        patched(Patch.REDUCE, one),
        patched(Patch.ALL_REDUCE, in_replica),
    ):
        assert step() == 2.0

    assert len(one.noted) == 1
    assert len(in_replica.noted) == 2
    assert several.noted


def test_strategies_are_created_by_one_constructor() -> None:
    calls = Calls()

    with patched(Patch.NEW_STRATEGY, calls):
        made = [
            tf.distribute.MirroredStrategy(CPUS),
            tf.distribute.OneDeviceStrategy("/cpu:1"),
            tf.distribute.experimental.CentralStorageStrategy(CPUS, "/cpu:0"),
        ]

    assert [strategy for strategy, *_ in calls.noted] == made
    assert not any(map(distribution.is_default_strategy, made))
    assert distribution.is_default_strategy(tf.distribute.get_strategy())


def test_the_device_scope_of_eager_code() -> None:
    assert eager.eager_device() == ""
    with tf.device("/cpu:1"):
        assert eager.eager_device().endswith("CPU:1")


def test_the_next_element_of_an_iterator_by_its_resource() -> None:
    iterator = iter(tf.data.Dataset.from_tensor_slices([5, 6]))
    resource = tf.nest.flatten(iterator, expand_composites=True)[0]

    values = [eager.next_element(resource, [tf.int32], [[]])[0].numpy() for _ in range(2)]

    assert values == [5, 6]
    with pytest.raises(tf.errors.OutOfRangeError):
        eager.next_element(resource, [tf.int32], [[]])


def test_iterators_get_their_datasets_by_one_method() -> None:
    dataset = tf.data.Dataset.from_tensor_slices([5, 6])

    with patched(Patch.ITERATE, lambda _: lambda _dataset: dataset.map(lambda value: -value)):
        assert [int(value) for value in dataset] == [-5, -6]


@pytest.mark.parametrize("is_traced", [False, True])
def test_device_scopes_are_opened_through_modules_that_are_known(is_traced: bool) -> None:
    modules: list[str] = []

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def device(self: Any, name: Any) -> Any:
            frame = sys._getframe(1)
            while frame.f_globals["__name__"] in through:
                assert frame.f_back is not None
                frame = frame.f_back
            modules.append(frame.f_globals["__name__"])
            return original(self, name)

        return device

    through = eager.DEVICE_SCOPE_MODULES | {contextlib.__name__, *eager.DEVICE_QUERY_MODULES}

    def scope() -> Any:
        with tf.device("/cpu:1"):
            return tf.constant(1.0)

    with (
        patched(Patch.EAGER_SCOPE, noting),
        patched(Patch.GRAPH_SCOPE, noting),
    ):
        tf.function(scope, autograph=True)() if is_traced else scope()

    assert __name__ in modules


def resolver(job: str, task: int = 0, **jobs: int) -> Any:
    """The strategy of a task in a cluster without servers."""
    spec = {name: [f"{name}-{each}:1" for each in range(tasks)] for name, tasks in jobs.items()}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type=job, task_id=task, rpc_layer="grpc"
    )


def instead(calls: list[str], name: str) -> Callable[..., Any]:
    """Replaces a function, and records that it was called."""
    return lambda _: lambda *_args, **_kwargs: calls.append(name)


def test_a_worker_meets_the_others_by_functions_that_are_patched() -> None:
    calls: list[str] = []
    starting, beginning = Calls(), Calls()
    sending = lambda _: lambda value, *_args, **_kwargs: tf.identity(value)  # noqa: E731
    host = "/job:localhost/replica:0/task:0"

    def on_host(original: Callable[..., Any]) -> Callable[..., Any]:
        def devices(extended: Any, resolver: Any, worker_device: str) -> Any:
            assert worker_device == "/job:worker/task:1"
            distribution.use_host_as_worker(extended, host)
            return original(extended, resolver, "")

        return devices

    with (
        patched(Patch.CONFIGURE_COLLECTIVES, instead(calls, "configure")),
        patched(Patch.CONFIGURE_COORDINATION, instead(calls, "serve")),
        patched(Patch.ENABLE_COLLECTIVES, instead(calls, "serve")),
        patched(Patch.START_WORKER, starting),
        patched(Patch.WORKER_DEVICES, on_host),
        patched(Patch.FIRST_VALUE, beginning),
        patched(Patch.CHECK_HEALTH, instead(calls, "watch")),
    ):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver("worker", 1, worker=2))
        ((extended, _),) = starting.noted
        distribution.forget_default_device(extended)
        with (
            patched(Patch.BROADCAST_SEND, sending),
            distribution.as_chief(extended),
        ):
            assert variable_in(strategy).numpy() == 1.0  # the task of the second worker

    assert calls == ["configure", "serve", "serve", "watch"]
    assert [extended for extended, *_ in beginning.noted] == [strategy.extended]
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended.worker_devices == (f"{host}/device:CPU:0",)
    with strategy.scope():
        assert eager.eager_device() == ""
    assert distribution.strategy_name(strategy) == "MultiWorkerMirroredStrategy"


def test_collectives_are_created_by_functions_with_a_size() -> None:
    made = Calls()
    with patched(Patch.ALL_REDUCE_OP, made), contextlib.suppress(Exception):
        tf.function(
            lambda: tf.distribute.MirroredStrategy(CPUS).run(
                lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2]))
            )
        ).get_concrete_function()

    assert [arguments[1] for arguments in made.noted] == [2, 2]


def test_tf_config_is_read_by_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    read = Calls()
    with patched(Patch.READ_TF_CONFIG, read):
        tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()

    assert read.noted


def test_a_coordinator_reaches_its_cluster_by_functions_that_are_patched() -> None:
    calls: list[str] = []

    def connecting(_: Callable[..., Any]) -> Callable[..., Any]:
        def connect(strategy: Any, coordinator_name: str) -> None:
            assert coordinator_name == "chief"
            assert distribution.cluster_resolver(strategy).cluster_spec().num_tasks("ps") == 3
            distribution.set_cluster_size(strategy, 2, 3)

        return connect

    def counting(_: Callable[..., Any]) -> Callable[..., Any]:
        return lambda extended: distribution.set_worker_gpus(extended, 4)

    def scheduling(_: Callable[..., Any]) -> Callable[..., Any]:
        def schedule(cluster: Any, function: Any, args: Any, kwargs: Any) -> Any:
            return distribution.make_closure(cluster, function, args, kwargs)

        return schedule

    with (
        patched(Patch.CONNECT, connecting),
        patched(Patch.COUNT_WORKER_GPUS, counting),
        patched(Patch.SCHEDULE, scheduling),
        patched(Patch.CREATE_RESOURCE, instead(calls, "create")),
        patched(Patch.PROCESS_QUEUE, instead(calls, "wait")),
        patched(Patch.PREEMPTION, instead(calls, "wait")),
    ):
        strategy = tf.distribute.ParameterServerStrategy(
            resolver("chief", chief=1, ps=3, worker=2)
        )
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        scheduled = coordinator.schedule(tf.function(lambda: tf.constant(1.0)))

    assert strategy.num_replicas_in_sync == 4
    assert [type(each).__name__ for each in scheduled] == ["Closure", "RemoteValueImpl"]
    assert calls == ["wait"] * 3  # two workers, and what waits for their failures


def test_whether_the_eager_runtime_has_started() -> None:
    tf.constant(1.0) + 1.0
    assert distribution.has_eager_runtime_started()


@pytest.mark.skipif(not KERAS_2, reason="Keras 3 trains in functions alone")
def test_keras_2_trains_in_a_graph_by_methods_of_one_class() -> None:
    trained: list[str] = []
    with keras.around_keras_graph_training(instead(trained, "fit")), tf.Graph().as_default():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit([[1.0]], [[1.0]])
        model.train_on_batch([[1.0]], [[1.0]])

    assert trained == ["fit", "fit"]
