"""Training on towers against training on one GPU: the loops of MNIST and of CIFAR-10.

The strategies of TensorFlow train the same network on the same devices as the towers of
MNIST. On CPU devices, the measured ratio shows how much of the time the towers run at once. It
does not predict GPUs, because their copies and kernels have other costs. The assertions hold on a
busy machine, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from placement_checks.testing.benchmark import TowerBenchmark

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")


def check(
    tower_benchmark: TowerBenchmark, towers: Path, single: Path, gpus: int, rows: int, rounds: int
) -> None:
    towers, single = (Path(os.path.relpath(target)) for target in (towers, single))
    batch = single.with_name(f"{single.name.partition(':')[0]}:batch")

    timing = tower_benchmark(
        str(towers), str(single), str(batch), gpus=gpus, rows=rows, rounds=rounds
    )

    assert timing.rows == rows
    assert timing.simulated is not None
    if len(timing.trace.steps) > 1:  # a single step is no minimum
        assert 0.7 / gpus < timing.simulated.ratio < 1.3 / gpus


@pytest.mark.parametrize("rows", [128, 512])
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_mnist(tower_benchmark: TowerBenchmark, fixtures: Path, gpus: int, rows: int) -> None:
    towers, single = (
        fixtures / f"programs/graph/mnist.py:build_{kind}" for kind in ("towers", "single")
    )
    check(tower_benchmark, towers, single, gpus, rows, rounds=30)


@pytest.mark.parametrize("rows", [128, 512])
@pytest.mark.parametrize("strategy", ["mirrored", "central"])
def test_strategies(
    tower_benchmark: TowerBenchmark, fixtures: Path, strategy: str, rows: int
) -> None:
    towers = fixtures / f"programs/graph/strategies.py:build_{strategy}"
    check(
        tower_benchmark,
        towers,
        fixtures / "programs/graph/mnist.py:build_single",
        2,
        rows,
        rounds=30,
    )


@pytest.mark.parametrize("kind", ["towers", "mirrored", "central"])
def test_functions(tower_benchmark: TowerBenchmark, fixtures: Path, kind: str) -> None:
    """The network of MNIST in a `tf.function` and under strategies."""
    functions = os.path.relpath(fixtures / "programs/eager/functions.py")

    timing = tower_benchmark(
        f"{functions}:train_{kind}", f"{functions}:train_one_device", gpus=2, rounds=30
    )

    assert timing.simulated is not None
    assert 0.35 < timing.simulated.ratio < 0.65


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_cifar10(tower_benchmark: TowerBenchmark, fixtures: Path, gpus: int) -> None:
    towers, single = (
        fixtures / f"programs/graph/cifar10.py:build_{kind}" for kind in ("towers", "single")
    )
    check(tower_benchmark, towers, single, gpus, 128, rounds=10)
