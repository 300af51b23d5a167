"""A program stops before its first training step, and the step is recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import CallableOptions

from placement_checks import Missing, place, watch
from placement_checks.capture.in_process import sessions
from placement_checks.capture.in_process import sessions as session_runs
from placement_checks.capture.in_process.builder import build
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.program import CapturedProgram, Program
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched

tf1 = tf.compat.v1


class Model:
    """A small model; ``trained`` counts the executed steps."""

    def __init__(self, name: str = "w") -> None:
        self.trained: list[float] = []
        self.x = tf1.placeholder(tf.float32, [None, 2], name=f"x_{name}")
        self.w = tf1.get_variable(name, [2, 1], use_resource=True)
        self.loss = tf.reduce_mean(tf.square(self.x @ self.w), name=f"loss_{name}")
        self.rows = tf.shape(self.x)[0]
        step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        noted = tf1.py_func(self._train, [], tf.float32)
        with tf.control_dependencies([noted]):
            self.train = optimizer.minimize(self.loss, global_step=step, name=f"train_{name}")
        self.init = tf1.global_variables_initializer()

    def _train(self) -> np.float32:
        self.trained.append(1.0)
        return np.float32(1.0)


ROWS = np.ones([4, 2], np.float32)
models: list[Model] = []


def model() -> Model:
    models.append(Model())
    return models[-1]


def built(function: Callable[[], Any]) -> CapturedProgram:
    result = build(Program.from_function(function), 2)
    assert not any(model.trained for model in models)
    models.clear()
    return result


def by_a_session() -> None:
    with tf.Graph().as_default():
        m = model()
        with tf1.Session() as session:
            session.run(m.init)
            for _ in range(3):
                session.run([m.train, m.loss], {m.x: ROWS})


def interactively() -> None:
    m = model()
    tf1.InteractiveSession()
    m.init.run()
    m.train.run({m.x: ROWS})


def by_a_callable() -> None:
    m = model()
    session = tf1.Session()
    session.run(m.init)
    session.make_callable([m.train, m.loss], feed_list=[m.x])(ROWS)


def by_a_callable_without_feeds() -> None:
    m = model()
    session = tf1.Session()
    session.make_callable(m.init)()
    session.make_callable(m.train)()


def by_a_callable_of_keras() -> None:
    m = model()
    session = tf1.Session()
    session.run(m.init)
    rows = tf.constant(ROWS)
    options = CallableOptions(fetch=[m.loss.name, m.rows.name])
    options.tensor_connection.add(from_tensor=rows.name, to_tensor=m.x.name)
    assert session._make_callable_from_options(options)()[1] == 4
    options = CallableOptions(feed=[m.x.name], fetch=[m.loss.name], target=[m.train.name])
    session._make_callable_from_options(options)(ROWS)


def in_parts() -> None:
    m = model()
    session = tf1.Session()
    session.run(m.init)
    with tf.control_dependencies([m.train]):
        done = tf.constant(1.0)
    handle = session.partial_run_setup([m.rows, done], [m.x])
    assert session.partial_run(handle, m.rows, {m.x: ROWS}) == 4
    session.partial_run(handle, done)


def monitored() -> None:
    m = model()
    with tf1.train.MonitoredTrainingSession() as session:
        while not session.should_stop():
            session.run([m.train, m.loss], {m.x: ROWS})


def supervised() -> None:
    m = model()
    supervisor = tf1.train.Supervisor(logdir=None)
    with supervisor.managed_session() as session:
        session.run([m.train, m.loss], {m.x: ROWS})


def although_all_is_caught() -> None:
    m = model()
    session = tf1.Session()
    session.run(m.init)
    for _ in range(3):
        with contextlib.suppress(BaseException):
            session.run([m.train, m.loss], {m.x: ROWS})


def in_a_thread() -> None:
    m = model()
    session = tf1.Session()
    session.run(m.init)
    thread = threading.Thread(target=lambda: session.run([m.train, m.loss], {m.x: ROWS}))
    thread.start()
    thread.join()


WAYS = [
    *(by_a_session, interactively, by_a_callable, by_a_callable_without_feeds, in_parts),
    by_a_callable_of_keras,
    *(monitored, supervised, although_all_is_caught, in_a_thread),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_recorded_and_not_run(way: Callable[[], None]) -> None:
    seen = built(way)

    assert len(seen.requested.step.train_op) == 1
    assert {call.variable for call in seen.applied} == {"w"}


def test_fetches_and_feeds_make_the_step() -> None:
    seen = built(by_a_session)

    assert seen.requested.step.train_op == ("train_w",)
    assert seen.requested.step.losses == ("loss_w:0",)
    assert list(seen.fed) == ["x_w:0"]
    np.testing.assert_array_equal(seen.fed["x_w:0"], ROWS)


def with_a_hook() -> None:
    m = model()
    moved = tf1.get_variable("moving", [], trainable=False, use_resource=True)
    statistics = moved.assign(0.9 * moved + tf.reduce_mean(m.x))
    seen = tf1.get_variable("seen", [], trainable=False, use_resource=False)
    others = [
        tf.no_op(),
        tf1.assign_add(seen, m.loss),
        tf.identity(m.w),
        tf.cast(m.loss, tf.int32),
    ]
    with tf1.train.MonitoredTrainingSession() as session:
        session.run([m.train, m.loss, statistics.op, m.rows, *others], {m.x: ROWS})


def with_a_loss_that_waits() -> None:
    m = model()
    moved = tf1.get_variable("moving", [], trainable=False, use_resource=True)
    with tf.control_dependencies([moved.assign(tf.reduce_mean(m.x))]):
        loss = tf.identity(m.loss, name="waiting")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run([m.train, loss], {m.x: ROWS})


def test_a_loss_may_wait_for_updates_of_other_variables() -> None:
    assert built(with_a_loss_that_waits).requested.step.losses == ("waiting:0",)


def test_updates_of_other_variables_are_part_of_the_step() -> None:
    step = built(with_a_hook).requested.step

    assert len(step.train_op) == 3
    assert {"AssignVariableOp", "train_w"} < set(step.train_op)
    assert step.losses == ("loss_w:0",)


def test_feeds_of_earlier_partial_runs_count() -> None:
    assert list(built(in_parts).fed) == ["x_w:0"]


def on_gpus() -> None:
    with tf.device("/gpu:1"):
        by_a_session()


def test_gpus_need_not_exist() -> None:
    assert built(on_gpus).requested.step.train_op == ("train_w",)


def with_configuration() -> None:
    m = model()
    config = tf1.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    session = tf1.Session(config=config)
    session.run(m.init)
    session.run(m.train, {m.x: ROWS})


def test_the_configuration_is_recorded_as_written() -> None:
    assert built(with_configuration).requested.step.session == {
        "allow_soft_placement": True,
        "gpu_options": {"allow_growth": True},
    }
    assert built(by_a_session).requested.step.session == {}  # written, and empty


def test_a_function_that_trains_is_placed() -> None:
    evidence = place(by_a_session)

    assert evidence.placement.step.train_op == ("train_w",)
    assert isinstance(evidence.single_gpu, Missing)


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimator")
def test_an_estimator_is_captured(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        w = tf1.get_variable("w", [2, 1])
        loss = tf.reduce_mean(tf.square(features @ w - labels), name="loss")
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(
            loss, global_step=tf1.train.get_global_step(), name="train"
        )
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def rows() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((ROWS, ROWS[:, :1])).repeat()

    def train() -> None:
        tf.estimator.Estimator(model_fn, str(tmp_path)).train(rows, steps=10)

    seen = built(train)

    assert "train" in seen.requested.step.train_op
    assert [value.shape for value in seen.fed.values()] == [(4, 2), (4, 1)]


def adversaries() -> None:
    one, other = Model("generator"), Model("discriminator")
    models.extend([one, other])
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    while True:
        _, loss = session.run([one.train, one.loss], {one.x: ROWS})
        assert loss == 0  # substitute results
        for _ in range(2):
            session.run(other.train, {other.x: ROWS})


def test_alternating_steps_are_recorded() -> None:
    seen = built(adversaries)

    assert seen.requested.step.train_op == ("train_generator", "train_discriminator")
    assert seen.requested.step.runs == (("train_generator",), ("train_discriminator",))
    assert set(seen.fed) == {"x_generator:0", "x_discriminator:0"}


def normalized(m: Model, initialize: Callable[[Any, Any], Any]) -> Any:
    """An initializer from the moments of a batch, in a graph with a model that trains."""
    mean, variance = tf.nn.moments(m.x @ m.w, [0])
    g = tf1.get_variable("g", [1], use_resource=True)
    return initialize(g, -mean * tf.math.rsqrt(variance + 1.0))


@pytest.mark.parametrize(
    "initialize",
    [lambda g, value: g.assign(value), lambda g, value: g.assign_add(value)],
    ids=["assigned", "added"],
)
def test_an_initialization_from_a_batch_is_not_a_step(
    initialize: Callable[[Any, Any], Any],
) -> None:
    values: list[float] = []

    def program() -> None:
        m = model()
        of_batch = normalized(m, initialize)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        session.run(of_batch, {m.x: 5 * ROWS})
        values.extend(session.run(tf1.trainable_variables()[1]))
        for _ in range(3):
            session.run([m.train, m.loss], {m.x: ROWS})

    seen = built(program)

    assert seen.requested.step.train_op == ("train_w",)
    np.testing.assert_array_equal(seen.fed["x_w:0"], ROWS)
    assert values != [0.0]  # it was executed


def test_repeated_updates_are_a_step() -> None:
    """No gradient is found behind it: another run may have computed the gradient."""

    def program() -> None:
        m = model()
        (gradient,) = tf1.gradients(m.loss, m.w)
        fed = tf1.placeholder(tf.float32, [2, 1], name="fed")
        step = tf1.assign_sub(m.w, 0.1 * fed, name="by_hand")
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(step, {fed: session.run(gradient, {m.x: ROWS})})

    assert set(built(program).fed) == {"fed:0"}


def accumulated(m: Model) -> tuple[Any, Any]:
    """An op that accumulates the gradients of a batch, and an op that applies the sum."""
    total = tf1.get_variable("total", [2, 1], trainable=False, use_resource=True)
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    ((gradient, _),) = optimizer.compute_gradients(m.loss, [m.w])
    add = total.assign_add(gradient).op
    return add, optimizer.apply_gradients([(total, m.w)], name="apply")


def test_runs_that_add_up_gradients_belong_to_the_step_that_applies_them() -> None:
    def program() -> None:
        m = model()
        add, apply = accumulated(m)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        for _ in range(2):
            for scale in (1, 2):
                session.run([add, m.loss], {m.x: scale * ROWS})
            session.run(apply)

    seen = built(program)

    add, apply = seen.requested.step.train_op
    assert add.startswith("AssignAddVariableOp")
    assert apply == "apply"
    assert seen.requested.step.losses == ("loss_w:0",)
    assert seen.step_count == 2
    np.testing.assert_array_equal(seen.fed["x_w:0"], ROWS)


def test_runs_that_add_up_gradients_for_no_step_are_not_part_of_it() -> None:
    """Such as statistics of gradients, before a step with its own gradients."""

    def program() -> None:
        m = model()
        add, _ = accumulated(m)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        session.run(add, {m.x: ROWS})
        for _ in range(3):
            session.run(m.train, {m.x: ROWS})

    seen = built(program)

    assert seen.requested.step.train_op == ("train_w",)
    assert seen.step_count == 1


def pretraining() -> None:
    one, _other = Model("one"), Model("other")
    models.append(one)
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    for _ in range(100):
        session.run(one.train, {one.x: ROWS})
    raise AssertionError("it must have ended before")


def test_an_optimizer_that_never_runs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines: list[str] = []

    def read(*_: Any, **__: Any) -> dict[str, Any]:
        pipelines.append("read")
        return {}

    monkeypatch.setattr(sessions, "read_pipelines", read)

    assert built(pretraining).requested.step.train_op == ("train_one",)
    assert pipelines == ["read"]  # for the first of its steps


def reusing_an_array() -> None:
    one, other = Model("one"), Model("other")
    models.extend([one, other])
    rows = ROWS.copy()
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    session.run(one.train, {one.x: rows})
    rows[:] = 7
    session.run(other.train, {other.x: rows})


def test_feeds_are_copied() -> None:
    fed = built(reusing_an_array).fed

    np.testing.assert_array_equal(fed["x_one:0"], ROWS)
    np.testing.assert_array_equal(fed["x_other:0"], np.full([4, 2], 7))


def in_two_graphs() -> None:
    for number in range(2):
        with tf.Graph().as_default():
            m = Model(f"of_{number}")
            if number == 0:
                Model("never")
            session = tf1.Session()
            session.run(tf1.global_variables_initializer())
            session.run(m.train, {m.x: ROWS})


def test_another_graph_is_another_program() -> None:
    seen = built(in_two_graphs)

    assert seen.requested.step.train_op == ("train_of_0",)
    assert (list(seen.fed), seen.step_count) == (["x_of_0:0"], 1)


def of_rows(rows: Callable[[], Any], feed: bool = False) -> Callable[[], None]:
    """A program with gradients that do not need its labels. It fetches no loss."""

    def train() -> None:
        x, y = rows()
        w = tf1.get_variable("w", [2, 1], use_resource=True)
        loss = tf.reduce_mean(x @ w - y)
        step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        session.run(step, {x: 2 * ROWS} if feed else None)

    return train


def dataset(of: int = 1) -> Any:
    rows = tf.data.Dataset.from_tensors((ROWS, ROWS[:, :1])).repeat(of)
    return tf1.data.make_one_shot_iterator(rows).get_next()


def test_rows_of_a_pipeline_include_labels() -> None:
    fed = built(of_rows(dataset)).fed

    assert sorted(value.shape for value in fed.values()) == [(4, 1), (4, 2)]


def test_a_feed_replaces_a_pipeline() -> None:
    fed = built(of_rows(dataset, feed=True)).fed

    assert {value.shape: value.flat[0] for value in fed.values()} == {(4, 2): 2, (4, 1): 1}


def empty_queue() -> Any:
    x, y = tf1.FIFOQueue(4, [tf.float32, tf.float32], [[4, 2], [4, 1]]).dequeue()
    return x, y


@pytest.mark.parametrize("rows", [lambda: dataset(0), empty_queue], ids=["no row", "a queue"])
def test_an_empty_pipeline_is_not_waited_for(
    rows: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_runs, "_PIPELINE_LIMIT", 50)

    assert built(of_rows(rows)).fed == {}


def evaluating_first() -> None:
    m = model()
    session = tf1.Session()
    session.run(m.init)
    pictures = tf1.py_func(lambda w: threading.Event().wait(0.6) or w, [m.w], tf.float32)
    pictures.set_shape([2, 1])
    first = session.run(pictures)
    assert first.any()
    assert not session.run(pictures).any()  # zeros, because the time is over
    session.run(m.train, {m.x: ROWS})


def test_runs_that_only_read_the_model_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_READING_LIMIT", 1.0)

    assert built(evaluating_first).requested.step.train_op == ("train_w",)


def when_the_time_is_over() -> None:
    m = model()
    zero = tf1.zeros_initializer()
    counter = tf1.get_variable("counter", [], initializer=zero, trainable=False)
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    size = tf.reduce_sum(tf.abs(m.w))
    assert session.run(size) == 0  # substitute results
    assert session.run(size, options=tf1.RunOptions()) > 0  # which may have a limit of their own
    assert session.run(tf.constant(3.0)) == 3  # reads no model
    assert session.run(counter.assign_add(size + 1)) > 1
    assert session.run(counter) > 1
    session.run(m.train, {m.x: ROWS})


def test_other_runs_have_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_READING_LIMIT", 0.0)

    assert built(when_the_time_is_over).requested.step.train_op == ("train_w",)


_OF_GPUS = tf.float64  # the float32 ops run on CPUs with oneDNN kernels


def evaluating_on_gpus() -> None:
    """Neither op has a CPU kernel: one is refused by its attributes, the other when it runs."""
    m = model()
    images = tf.ones([2, 4, 2, 2], _OF_GPUS)
    larger = tf.nn.depth_to_space(images, 2, data_format="NCHW")
    pooled = tf.nn.max_pool2d(images, 2, 2, "VALID", data_format="NCHW")
    moving = tf1.get_variable("moving", initializer=tf.reduce_mean(larger), trainable=False)
    session = tf1.Session()
    session.run(m.init)  # without the other ops
    assert session.run(larger).tolist() == np.zeros([2, 1, 4, 4]).tolist()
    assert (
        session.run(pooled, options=tf1.RunOptions()).tolist() == np.zeros([2, 4, 1, 1]).tolist()
    )
    assert session.run(m.rows, {m.x: ROWS}) == 4
    session.run(tf1.global_variables_initializer())
    assert session.run(moving) == 0  # it is still uninitialized
    session.run(m.train, {m.x: ROWS})


def test_runs_of_ops_without_a_cpu_kernel_return_zeros() -> None:
    assert built(evaluating_on_gpus).requested.step.train_op == ("train_w",)


def reading_too_early() -> None:
    m = model()
    session = tf1.Session()
    with pytest.raises(tf.errors.FailedPreconditionError):
        session.run(m.loss, {m.x: ROWS})
    session.run(m.train, {m.x: ROWS})


def test_uninitialized_variables_stay_an_error() -> None:
    assert built(reading_too_early).requested.step.train_op == ("train_w",)


def failing() -> None:
    m = model()
    session = tf1.Session()
    session.run(m.init)
    with pytest.raises(tf.errors.InvalidArgumentError):
        session.run(m.loss)
    with pytest.raises(ValueError, match="shorter"):
        session.make_callable(m.loss, [m.x])()
    session.run(m.train, {m.x: ROWS})


def test_a_failing_run_raises_its_error() -> None:
    assert built(failing).requested.step.train_op == ("train_w",)


def on_a_server() -> None:
    m = model()
    server = "grpc://10.0.0.1:2222"
    assert not tf1.Session(server).sess_str
    with tf1.train.MonitoredTrainingSession(server, is_chief=False) as session:
        session.run(m.train, {m.x: ROWS})


def test_a_server_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("its queues are not filled")

    monkeypatch.setattr(sessions, "read_pipelines", fail)
    assert built(on_a_server).requested.step.train_op == ("train_w",)


def test_sessions_are_restored_after_building() -> None:
    built(by_a_session)
    with tf.Graph().as_default():
        m = Model()
        with tf1.Session() as session:
            session.run(m.init)
            session.run(m.train, {m.x: ROWS})

    assert m.trained == [1.0]


def test_a_session_that_is_left_open_ends_with_its_program() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        built(interactively)

        assert tf1.get_default_session() is session
    assert tf1.get_default_session() is None


def test_building_in_threads_restores_sessions() -> None:
    """If both built at once, the second would end last and restore the patches of the first."""
    first_builds, second_builds, first_ended = (threading.Event() for _ in range(3))

    def first() -> None:
        Model("first")
        first_builds.set()
        second_builds.wait(0.5)

    def second() -> None:
        Model("second")
        second_builds.set()
        first_ended.wait(10)

    def begin() -> None:
        build(Program.from_function(first), 1)
        first_ended.set()

    thread = threading.Thread(target=lambda: build(Program.from_function(second), 1))
    other = threading.Thread(target=begin)
    other.start()
    first_builds.wait()
    thread.start()
    other.join()
    thread.join()

    test_sessions_are_restored_after_building()


def test_a_block_is_captured() -> None:
    with watch(gpus=2) as watched:
        by_a_session()
        raise AssertionError("the block ends at the step")
    models.clear()

    evidence = place(watched)
    assert evidence.placement.step.train_op == ("train_w",)
    assert evidence.placement.program.startswith("tests/capture/in_process/test_sessions.py:")


def test_a_block_may_only_build_a_graph() -> None:
    with watch(name="the model") as watched:
        Model()

    assert place(watched).placement.program == "the model"


def test_a_block_that_builds_nothing_is_an_error() -> None:
    with pytest.raises(InputError, match="the model built no graph; call the function that"):
        with watch(name="the model"):
            pass


def test_a_block_is_a_target_after_its_end() -> None:
    with watch(name="the model") as watched:
        Model()
        with pytest.raises(UsageError, match="the model is still being captured; place it after"):
            place(watched)


def test_an_error_in_a_block_is_the_callers_own() -> None:
    with pytest.raises(KeyError):
        with watch():
            raise KeyError("no such layer")


def test_all_runs_reach_the_patched_method() -> None:
    noted: list[str] = []

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def ran(session: Any, *args: Any) -> Any:
            noted.append(type(session).__name__)
            return original(session, *args)

        return ran

    with tf.Graph().as_default(), patched(Patch.RUN, noting):
        tf1.Session().run(tf.constant(1.0))
        one = tf.constant(1.0)
        with tf1.train.MonitoredTrainingSession() as session:
            session.run(one)

    assert noted.count("Session") >= 2
