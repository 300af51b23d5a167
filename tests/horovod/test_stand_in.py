"""The stand-in for Horovod has Horovod's names, arguments, results and errors."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.pyct.transpiler import PyToPy

from placement_checks.core.errors import InputError
from placement_checks.core.ranks import COLLECTIVE, Rank
from placement_checks.horovod.activate import RankWatch, stand_in_for_horovod

tf1 = tf.compat.v1


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankWatch]:
    for name, value in Rank(1, 4).environment.items():
        monkeypatch.setenv(name, value)
    with stand_in_for_horovod() as watch:
        yield watch


@pytest.fixture
def hvd(watch: RankWatch) -> Any:
    del watch
    module = importlib.import_module("horovod.tensorflow")
    module.init()
    return module


@pytest.mark.usefixtures("watch")
def test_the_modules_are_imported_by_their_names() -> None:
    for name in (
        "horovod",
        "horovod.tensorflow.keras",
        "horovod.tensorflow.keras.callbacks",
        "horovod.keras",
        "horovod.tensorflow.elastic",
    ):
        assert isinstance(importlib.import_module(name), ModuleType)

    assert importlib.import_module("horovod").__version__ == "0.28.1"
    keras = importlib.import_module("horovod.keras")
    assert keras.callbacks.MetricAverageCallback
    assert keras.elastic.KerasState


def test_nothing_is_left_after_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Rank(0, 2).environment.items():
        monkeypatch.setenv(name, value)
    with stand_in_for_horovod():
        importlib.import_module("horovod.tensorflow")

    assert not [name for name in sys.modules if name.partition(".")[0] == "horovod"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("horovod.torch", "it is Horovod for PyTorch"),
        ("horovod.spark.keras", "check the function that it runs on each rank"),
        ("horovod.runner", "docs/horovod.md lists its names"),
        ("mpi4py", r"use hvd.rank\(\)"),
    ],
)
@pytest.mark.usefixtures("watch")
def test_other_modules_are_missing(name: str, words: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=words):
        importlib.import_module(name)


def test_a_missing_name_is_named(hvd: Any) -> None:
    with pytest.raises(AttributeError, match="'alltoall' in the stand-in of --horovod"):
        _ = hvd.alltoall
    assert not hasattr(hvd, "reducescatter")
    with pytest.raises(AttributeError, match=r"'horovod\.tensorflow\.mpi_ops' has no attribute"):
        _ = hvd.mpi_ops.nosuchname


def test_modules_that_horovod_does_not_import_are_no_attributes(hvd: Any) -> None:
    assert hvd.elastic.run
    assert hvd.mpi_ops.Sum is hvd.Sum
    assert not hasattr(hvd, "keras")

    importlib.import_module("horovod.tensorflow.keras")

    assert hvd.keras.callbacks.MetricAverageCallback


@pytest.mark.usefixtures("watch")
def test_nothing_works_before_init() -> None:
    hvd: Any = importlib.import_module("horovod.tensorflow")

    for call in (hvd.rank, hvd.local_size, lambda: hvd.allreduce(1.0)):
        with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
            call()
    assert not hvd.is_initialized()


def test_the_place_of_a_rank(hvd: Any) -> None:
    assert (hvd.rank(), hvd.size()) == (1, 4)
    assert (hvd.local_rank(), hvd.local_size()) == (1, 4)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)


def test_values_of_eager_code_are_those_of_equal_ranks(hvd: Any) -> None:
    x = tf.constant([[1.0, 2.0]])

    np.testing.assert_array_equal(hvd.allreduce(x), x)
    np.testing.assert_array_equal(hvd.allreduce(x, op=hvd.Sum), 4 * x)
    np.testing.assert_array_equal(hvd.allreduce(x, average=False), 4 * x)
    np.testing.assert_array_equal(hvd.allreduce(x, op=hvd.Product), x**4)
    np.testing.assert_array_equal(hvd.allreduce(x, op=hvd.Max), x)
    np.testing.assert_array_equal(hvd.broadcast(x, 3), x)
    assert hvd.allgather(x).shape == (4, 2)
    assert hvd.allgather_object({"a": 1}) == [{"a": 1}] * 4
    np.testing.assert_array_equal(hvd.mpi_ops._allreduce(x), 4 * x)
    scaled = hvd.allreduce(x, prescale_factor=0.5, postscale_factor=4.0)
    np.testing.assert_array_equal(scaled, 2 * x)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda hvd: hvd.allreduce(1.0, average=True, op=hvd.Sum), ValueError, "op and average"),
        (lambda hvd: hvd.broadcast(1.0, 4), ValueError, "root_rank 4 does not exist"),
        (lambda hvd: hvd.broadcast_global_variables(0), RuntimeError, "eager execution"),
        (
            lambda hvd: hvd.DistributedGradientTape(
                tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0
            ),
            ValueError,
            "gradient_predivide_factor",
        ),
        (
            lambda hvd: hvd.DistributedOptimizer(
                tf1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2
            ),
            InputError,
            "backward_passes_per_step > 1 is not supported",
        ),
        (
            lambda hvd: hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum),
            InputError,
            "op=hvd.Adasum of gradients is not supported",
        ),
        (lambda hvd: hvd.allreduce(1.0, process_set=object()), InputError, "a process set"),
    ],
)
def test_arguments_are_refused(hvd: Any, call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(hvd)


def test_collectives_of_a_graph_have_the_names_of_horovod(hvd: Any) -> None:
    with tf.Graph().as_default() as graph, tf1.name_scope("tower"):
        x = tf1.placeholder(tf.float32, [2], name="x")
        hvd.allreduce(x)
        hvd.allreduce(x, op=hvd.Sum, name="total")
        hvd.allgather(x)
        hvd.broadcast_variables([tf1.get_variable("w", [2])], 0)

    found = {
        op.name: op.get_attr(COLLECTIVE).decode()
        for op in graph.get_operations()
        if COLLECTIVE in op.node_def.attr
    }
    assert found == {
        "tower/HorovodAllreduce_tower_x_0": "allreduce Average",
        "tower/total": "allreduce Sum",
        "tower/HorovodAllgather_tower_x_0": "allgather",
        "tower/HorovodBroadcast_w_0": "broadcast 0",
    }


def test_a_dtype_that_cannot_be_joined_is_named(hvd: Any) -> None:
    with (
        tf.Graph().as_default(),
        pytest.raises(InputError, match="allreduce Sum of uint8 in a graph is not supported"),
    ):
        hvd.allreduce(tf1.placeholder(tf.uint8, [2]), op=hvd.Sum)


def test_the_gradient_of_an_allreduce_is_reduced(hvd: Any) -> None:
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [2], name="x")
        tf1.gradients(tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 2), x)

    kinds = [
        op.get_attr(COLLECTIVE) for op in graph.get_operations() if COLLECTIVE in op.node_def.attr
    ]
    assert kinds == [b"allreduce Sum", b"allreduce Sum"]


def test_a_session_notes_what_it_broadcasts(hvd: Any, watch: RankWatch) -> None:
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        for name in ("sent", "set_again", "alone"):
            tf1.get_variable(name, [2], initializer=tf1.random_normal_initializer())
        sent, again, _ = tf1.global_variables()
        session.run(tf1.global_variables_initializer())
        session.run(hvd.broadcast_variables([sent, again], 0))
        session.run(again.initializer)

        record = watch.record(graph, {}, None)

    assert record.broadcast == {"sent"}
    assert record.collectives == ["HorovodBroadcast_sent_0", "HorovodBroadcast_set_again_0"]
    assert record.starts.keys() == {"sent", "set_again", "alone"}
    assert len(set(record.starts.values())) == 3


def test_a_broadcast_counts_if_it_is_the_last_write_of_a_run(hvd: Any, watch: RankWatch) -> None:
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        for name in ("sent", "apart"):
            tf1.get_variable(name, [2], use_resource=True)
        sent, apart = tf1.global_variables()
        with tf.control_dependencies([sent.initializer]):
            after = hvd.broadcast_variables([sent], 0)
        session.run(apart.initializer)
        session.run([after, hvd.broadcast_variables([apart], 0), apart.initializer])

        assert watch.record(graph, {}, None).broadcast == {"sent"}


def test_autograph_converts_code_of_the_program_alone(
    hvd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: set[str] = set()
    transform = PyToPy.transform_function

    def noted(transpiler: Any, function: Any, *arguments: Any) -> Any:
        converted.add(function.__module__)
        return transform(transpiler, function, *arguments)

    monkeypatch.setattr(PyToPy, "transform_function", noted)

    def step(x: Any) -> Any:
        for _ in tf.range(2):  # which only converted code can do
            x += 1.0
        return hvd.allreduce(x, op=hvd.Sum)

    tf.function(step).get_concrete_function(tf.ones([2]))

    assert __name__ in converted
    assert not [module for module in converted if module.startswith("placement_checks")]
