"""Fixtures of the benchmarks, and the figures that a run prints and compares at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.figures import GOALS, Figures, Record, lines
from placement_checks.targets.importing import emulate_script_environment
from placement_checks.testing.benchmark import Timings

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

# "TF Notes (2), Speedup and Benchmark with Two GPU Cards", and TensorFlow's CIFAR-10 tutorial.
PUBLISHED = """\
published results for GPUs (CPU devices do not predict the cost of their copies and kernels):
  MNIST, 2 x Tesla K40c and 1: 0.78 of the time with 128 rows, 0.69 with 512
  CIFAR-10, 4 GPUs and 1: 4 times the examples per second
"""
FIGURES = "figures"  # the entry of `extra_info`


@pytest.fixture(scope="module")
def mnist(fixtures: Path) -> ModuleType:
    with emulate_script_environment(fixtures / "programs/graph/mnist.py"):
        return import_module("mnist")


@pytest.fixture
def record(benchmark: BenchmarkFixture) -> Record:
    """Records the measurements of a figure for the final table and the saved run."""

    def keep(name: str, values: Sequence[float]) -> None:
        assert name in GOALS
        benchmark.extra_info.setdefault(FIGURES, {})[name] = list(values)

    return keep


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FigureTable(), "placement-figures")


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Leave out the clock rate, which always changes."""
    for key in ("hz_actual", "hz_actual_friendly"):
        machine_info["cpu"].pop(key, None)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.pluginmanager.hasplugin(Timings.name):
        terminalreporter.write(PUBLISHED)


class FigureTable:
    """The plugin that prints the figures with their goals and the compared run."""

    _same_machine = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_compare_machine_info(
        self, machine_info: Mapping[str, Any], compared_benchmark: Mapping[str, Any]
    ) -> None:
        as_saved = json.loads(json.dumps(machine_info))
        self._same_machine = as_saved == compared_benchmark["machine_info"]

    @pytest.hookimpl(trylast=True)  # after pytest-benchmark's own table
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        session = config.pluginmanager.getplugin("pytest-benchmark")
        if session is None:
            return
        now = _figures(benchmark.extra_info for benchmark in session.benchmarks)
        if not now:
            return
        runs = [run.values() for run in session.compared_mapping.values()]
        before = _figures(each["extra_info"] for run in runs[-1:] for each in run)
        terminalreporter.section("figures and their goals: median (quartiles)")
        for line in lines(now, before, same_machine=self._same_machine):
            terminalreporter.write_line(line)


def _figures(infos: Iterable[Mapping[str, Any]]) -> Figures:
    return {name: values for info in infos for name, values in info.get(FIGURES, {}).items()}
