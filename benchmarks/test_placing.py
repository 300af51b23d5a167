"""The time to place and judge a tower graph and to write its baseline, relative to building it.

These ratios are measured alternately. The cost of the placer process, for a small graph and for a
million ops, is measured with graphs in files and a process that only places them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import figures, placer_alone
from benchmarks.figures import Record
from benchmarks.processes import WITH_BYTECODE
from benchmarks.turns import timed
from placement_checks import Evidence, Placement, Program, Report, place, verify
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.objectives import objectives
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.compare import compare
from placement_checks.baseline.text import parse, render
from placement_checks.core.baseline import Difference

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

tf1 = tf.compat.v1
OPS_A_LAYER = 75
PAIRS = {1_000: 15, 10_000: 5, 75_000: 3}  # by the requested number of ops
COUNTED = {1_000: 1_000, 10_000: 10_000, 75_000: 78_000}  # the resulting number of ops
COPIES = 100  # in a graph of 10,417 ops
NEEDED = 10e9  # bytes of free memory to place a million ops


def towers(ops: int) -> Callable[..., object]:
    """A builder of two towers of dense layers with momentum, about ``ops`` ops in all."""

    def build(num_gpus: int = 2) -> object:
        with tf.device("/cpu:0"):
            optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        tower_grads, losses = [], []
        for i in range(num_gpus):
            with (
                tf.device(f"/gpu:{i}"),
                tf.name_scope(f"tower_{i}"),
                tf1.variable_scope("", reuse=i > 0),
            ):
                x = tf1.placeholder(tf.float32, [None, 8])
                for layer in range(max(1, ops // OPS_A_LAYER)):
                    with tf.device("/cpu:0"):
                        w = tf1.get_variable(f"w{layer}", [8, 8])
                        b = tf1.get_variable(f"b{layer}", [8])
                    x = tf.nn.relu(x @ w + b)
                losses.append(tf.reduce_mean(x))
                tower_grads.append(optimizer.compute_gradients(losses[-1]))
        with tf.device("/cpu:0"):
            average = [
                (tf.add_n([grad for grad, _ in pairs]) / num_gpus, pairs[0][1])
                for pairs in zip(*tower_grads, strict=True)
            ]
            return {"train_op": optimizer.apply_gradients(average), "loss": losses}

    return build


def built(build: Callable[..., object]) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        build()
    return graph


def placed_and_judged(graph: tf.Graph) -> Report:
    return verify(place(graph))


def kept_as_baseline(placement: Placement) -> Difference:
    """Write, read and compare the baseline of a placement without cached analyses."""
    return compare(parse(render(baseline_from_placement(placement)), "page.toml"), placement)


@pytest.fixture(scope="module")
def _started() -> None:
    place(built(towers(1)))  # the placer process starts, which is reported apart


@pytest.mark.usefixtures("_started")
@pytest.mark.parametrize("ops", PAIRS)
def test_placing_and_judging_relative_to_building(
    benchmark: BenchmarkFixture, record: Record, ops: int
) -> None:
    if ops > 1_000 and benchmark.disabled:
        pytest.skip("building 75,000 ops takes a minute: --benchmark-only")
    build = towers(ops)
    ratios, rules, proofs, baselines, readings = [], [], [], [], []
    recorded = place(build, gpus=2).placement  # with its gradients, which a graph lacks
    one_gpu = place(build, gpus=1).placement

    def check() -> Report:
        building, graph = timed(lambda: built(build))
        checking, report = timed(partial(placed_and_judged, graph))
        judging, _ = timed(partial(verify, replace(report.evidence.placement)))
        comparing, found = timed(partial(kept_as_baseline, replace(report.evidence.placement)))
        assert not found
        evidence = Evidence(replace(recorded), single_gpu=replace(one_gpu))
        proving, proved = timed(partial(verify, evidence))
        assert "equal-to-one-gpu" in [
            verdict.rule for verdict in proved.verdicts if verdict.state == "kept"
        ]
        proofs.append(proving / building)
        placement = replace(recorded)
        analyze(placement).prepare()
        reading, texts = timed(lambda: objectives(placement))
        assert texts
        readings.append(reading / building)
        ratios.append(checking / building)
        rules.append(judging / building)
        baselines.append(comparing / building)
        return report

    report = benchmark.pedantic(check, rounds=PAIRS[ops])

    placed = len(report.evidence.ops)
    assert report.count("broken") == 0
    assert 0.9 < placed / COUNTED[ops] < 1.1
    assert statistics.median(ratios) < 0.5
    record(figures.PLACING.format(COUNTED[ops]), ratios)
    record(figures.PROOF.format(COUNTED[ops]), proofs)
    record(figures.BASELINE.format(COUNTED[ops]), baselines)
    record(figures.OBJECTIVE.format(COUNTED[ops]), readings)
    benchmark.extra_info |= {
        "ops": placed,
        "judge / build": [round(ratio, 3) for ratio in rules],
    }


def placed_alone(*graphs: Path) -> dict[str, Any]:
    """The cost of the placer process for graphs in files, as measured by `placer_alone`."""
    command = [sys.executable, placer_alone.__file__, *map(str, graphs)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=WITH_BYTECODE)
    took: dict[str, Any] = json.loads(ran.stdout)
    return took


def test_the_start_of_the_placer(
    benchmark: BenchmarkFixture, record: Record, tmp_path: Path
) -> None:
    if benchmark.disabled:
        pytest.skip("processes are started for their cost alone: --benchmark-only")
    small = write_copies(tmp_path, towers(1), 1)
    runs: list[dict[str, Any]] = []
    benchmark.pedantic(lambda: runs.append(placed_alone(small)), rounds=3)

    record(figures.START, [run["cpu"] for run in runs])
    benchmark.extra_info["GB"] = [round(run["peak"], 3) for run in runs]


def test_a_million_ops(benchmark: BenchmarkFixture, record: Record, tmp_path: Path) -> None:
    if benchmark.disabled:
        pytest.skip("placing a million ops takes minutes: --benchmark-only")
    if psutil.virtual_memory().available < NEEDED:
        pytest.skip(f"placing a million ops is tried with {NEEDED / 1e9:g} GB free")
    graphs = [write_copies(tmp_path, towers(ops), n) for ops, n in ((10_000, COPIES), (1, 1))]
    # The small graph is placed last, when the work after the large one is done.
    took = benchmark.pedantic(lambda: placed_alone(*graphs), rounds=1)

    assert 1.04e6 < took["ops"][0] < 1.05e6
    record(figures.PEAK, [took["peak"]])
    record(figures.HELD, [took["held"]])
    benchmark.extra_info["placer, CPU s"] = round(took["cpu"], 1)


def copies(build: Callable[..., object], number: int) -> Iterator[bytes]:
    """Serialized GraphDefs of one program, each with its own prefix.

    Their concatenation is one GraphDef.
    """
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(built(build).as_graph_def(), name="copy_000")
    serialized = graph.as_graph_def().SerializeToString()
    for copy in range(number):
        yield serialized.replace(b"copy_000", f"copy_{copy:03}".encode())


def write_copies(folder: Path, build: Callable[..., object], number: int) -> Path:
    """Write the file of a graph that consists of copies of a program."""
    path = folder / f"{number}.pb"
    with path.open("wb") as file:
        file.writelines(copies(build, number))
    return path


def test_copies_of_a_graph_are_a_graph() -> None:
    one, two = (
        tf1.GraphDef.FromString(b"".join(copies(towers(1), number))).node for number in (1, 2)
    )

    first, second = two[: len(one)], two[len(one) :]
    assert list(first) == list(one)
    assert {node.name.partition("/")[0] for node in second} == {"copy_001"}
    assert [(len(node.input), node.op) for node in second] == [
        (len(node.input), node.op) for node in first
    ]
    names = {node.name for node in second}
    assert {name.lstrip("^").partition(":")[0] for node in second for name in node.input} <= names


def test_the_generated_program_keeps_every_rule_that_can_be_judged() -> None:
    report = verify(place(Program("towers", towers(200))))

    assert report.count("broken") == 0
    assert report.count("kept") >= 14
