"""The time of a training loop with fed rows and with ``tf.data``.

The rows are in memory, and each epoch has them in another order; loops that feed select them with
NumPy. Each device has one core, so the preparation of a batch may slow down the towers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.turns import in_turn, one_core_each
from placement_checks.run.runnable import gpu_scope

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

tf1 = tf.compat.v1
TOWERS = 2
EXAMPLES = 4096
# Rows of the global batch: rounds, and steps of a turn. After its turn, the pipeline refills its
# buffer by one batch, which slows down the next loop.
TURNS = {128: (30, 5), 512: (12, 3)}

Rows = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def examples(mnist: ModuleType) -> Rows:
    rows: Rows = mnist.batch(np.random.default_rng(0), EXAMPLES)
    return rows


def fed_batches(examples: Rows, rows: int) -> Iterator[list[np.ndarray]]:
    """Endless batches: the x and y of each tower, in the order of towers."""
    rng = np.random.default_rng(0)
    while True:
        for towers in rng.permutation(EXAMPLES).reshape(-1, TOWERS, rows // TOWERS):
            yield [examples[key][tower] for tower in towers for key in ("x", "y")]


def pipeline_batches(examples: Rows, rows: int) -> tuple[Any, list[Any]]:
    """The op that starts a pipeline, and the tensors of its batches in the order of
    `fed_batches`.
    """
    with tf.device("/cpu:0"), tf.name_scope("pipeline"):
        dataset = tf.data.Dataset.from_tensor_slices((examples["x"], examples["y"]))
        dataset = dataset.shuffle(EXAMPLES, seed=0).repeat()
        dataset = dataset.batch(rows // TOWERS, drop_remainder=True).prefetch(TOWERS)
        iterator = tf1.data.make_initializable_iterator(dataset)
        return iterator.initializer, [
            tensor for _ in range(TOWERS) for tensor in iterator.get_next()
        ]


@pytest.mark.parametrize("rows", TURNS)
def test_feeding(
    benchmark: BenchmarkFixture, mnist: ModuleType, examples: Rows, rows: int
) -> None:
    rounds, steps = TURNS[rows]
    if benchmark.disabled:
        if rows > min(TURNS):
            pytest.skip("more rows take the more time: --benchmark-only")
        rounds = 4
    with tf.Graph().as_default() as graph, gpu_scope(TOWERS, devices="simulated") as config:
        tf1.set_random_seed(0)
        step = mnist.build_towers(TOWERS)
        initializer = tf1.global_variables_initializer()
    one_core_each(config, TOWERS)
    feeds = [tower[key] for tower in step["inputs"] for key in ("x", "y")]
    losses = [loss.name for loss in step["loss"]]
    with tf.Graph().as_default() as with_pipeline:
        start, batch = pipeline_batches(examples, rows)
        mapped = dict(zip([feed.name for feed in feeds], batch, strict=True))
        tf1.import_graph_def(graph.as_graph_def(), mapped, name="")

    with (
        tf1.Session(graph=graph, config=config) as fed,
        tf1.Session(graph=with_pipeline, config=config) as unfed,
    ):
        fed.run(initializer)
        unfed.run([initializer.name, start])
        call = fed.make_callable(step["train_op"], feed_list=feeds)
        batches = fed_batches(examples, rows)
        ways = {
            "feed_dict": lambda: fed.run(
                step["train_op"], dict(zip(feeds, next(batches), strict=True))
            ),
            "make_callable": lambda: call(*next(batches)),
            "tf.data": lambda: unfed.run(step["train_op"].name),
        }
        in_turn(benchmark, ways, rounds=rounds, steps=steps)
        reached = {
            "fed": fed.run(losses, dict(zip(feeds, next(batches), strict=True))),
            "unfed": unfed.run(losses),
        }

    for loss in reached.values():
        assert np.mean(loss) < np.log(mnist.CLASSES)  # the loss of a guess
