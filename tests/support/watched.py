"""Programs as a capture returns them: without listed inputs, but with known feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache, wraps
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from support import pairs

from placement_checks.capture.in_process.sessions import pipeline_outputs
from placement_checks.capture.programs import load
from placement_checks.core.evidence import Evidence
from placement_checks.core.program import CapturedProgram, Program
from placement_checks.run.compare.measure import measure
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.sessions import Conditions
from placement_checks.targets.forms import parse_target
from placement_checks.targets.importing import import_program

tf1 = tf.compat.v1

Batch = Callable[[np.random.Generator, int], Mapping[str, Any]]
Fed = Mapping[str, npt.NDArray[Any]]


def watched(
    build: Callable[..., Any], batch: Batch, rows: int = 16, gpus: int = 2, **fed: Any
) -> CapturedProgram:
    """A captured program that was fed the parts of ``rows`` for its towers, and other feeds by
    name."""
    built, inputs = _without_inputs(build, gpus)
    arrays = {name: np.asarray(array) for name, array in batch(_rng(), rows).items()}
    parts = np.array_split(np.arange(rows), len(inputs))
    of_inputs = {
        tensor: arrays[key][part] if arrays[key].ndim else arrays[key]
        for mapping, part in zip(inputs, parts, strict=True)
        for key, tensor in mapping.items()
    }
    return replace(built, fed={**of_inputs, **fed})


@lru_cache(8)
def _without_inputs(
    build: Callable[..., Any], gpus: int
) -> tuple[CapturedProgram, list[Mapping[str, str]]]:
    """A program without listed inputs, and its former inputs by tensor name."""
    inputs: list[Mapping[str, str]] = []

    @wraps(build)
    def without_inputs(*args: Any, **kwargs: Any) -> Any:
        step = dict(build(*args, **kwargs))
        listed = step.pop("inputs")
        inputs[:] = [
            {key: tensor.name for key, tensor in mapping.items()}
            for mapping in ([listed] if isinstance(listed, Mapping) else listed)
        ]
        return step

    return load(Program(build.__name__, without_inputs), gpus), inputs


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def watched_pipeline(build: Callable[..., Any], gpus: int) -> CapturedProgram:
    """A captured program that is fed the recorded output of its pipelines."""
    built = load(Program("program" if gpus > 1 else "single", build), gpus)
    step = built.requested.step
    names = pipeline_outputs(built.graph_def.node, [*step.train_op, *step.objectives])
    coordinator = tf1.train.Coordinator()
    with tf1.Session(graph=built.source.live) as session, built.source.live.as_default():
        threads = tf1.train.start_queue_runners(session, coordinator)
        values = session.run(names)
        coordinator.request_stop()
        session.close()
        coordinator.join(threads)
    return replace(built, fed=dict(zip(names, values, strict=True)))


def judged(towers: CapturedProgram, single: CapturedProgram, **conditions: Any) -> Evidence:
    """The evidence for the rules that compare numbers."""
    pair = ProgramPair.from_programs(towers, single, "simulated")
    measurement = measure(pair, None, Conditions(**conditions))
    return Evidence(
        towers.requested, program=towers, reference=single.requested, measurement=measurement
    )


@cache
def function(target: str) -> Any:
    """The imported function of a target; the same one each time, so that its builds are reused."""
    return import_program(parse_target(target)).build


def dense(x: Any, name: str, width: int) -> Any:
    with tf1.variable_scope(name):
        return pairs.predicted(x, width=width)


def hidden(x: Any, y: Any) -> Any:
    """A loss with a hidden layer."""
    x = tf.nn.relu(dense(x, "one", 8))
    return tf.reduce_mean(tf.math.squared_difference(dense(x, "two", 1), y))


def with_dropout(x: Any, y: Any) -> Any:
    x = tf1.nn.dropout(tf.nn.relu(dense(x, "one", 8)), rate=0.5)
    return tf.reduce_mean(tf.math.squared_difference(dense(x, "two", 1), y))


def normalized(x: Any, y: Any, width: int = 8) -> Any:
    x = dense(x, "one", width)
    scale = tf1.get_variable("scale", [width], initializer=tf1.ones_initializer())
    x = x[:, None, None]
    x, _, _ = tf1.nn.fused_batch_norm(x, scale, tf.zeros([width]), epsilon=1e-3)
    return tf.reduce_mean(tf.math.squared_difference(dense(tf.nn.relu(x[:, 0, 0]), "two", 1), y))


def mean(towers: Any) -> Any:
    return tf.add_n(towers) / len(towers)
