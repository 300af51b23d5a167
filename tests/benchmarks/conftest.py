"""What the benchmarks share, and what was published of their programs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from placement_checks.loading.targets import as_script
from placement_checks.testing.tower_benchmark import Timings

# "TF Notes (2), Speedup and Benchmark with Two GPU Cards", and TensorFlow's CIFAR-10 tutorial.
PUBLISHED = """\
published, of GPUs, whose copies and kernels cost what no CPU device shows:
  MNIST, 2 x Tesla K40c and 1: 0.78 of the time with 128 rows, 0.69 with 512
  CIFAR-10, 4 GPUs and 1: 4 times the examples a second
"""


@pytest.fixture(scope="module")
def mnist(fixtures: Path) -> ModuleType:
    with as_script(fixtures / "mnist.py"):
        return import_module("mnist")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.pluginmanager.hasplugin(Timings.name):
        terminalreporter.write(PUBLISHED)
