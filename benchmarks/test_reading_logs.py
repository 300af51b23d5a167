"""The cost of reading a long placement log, relative to a regular expression and to grep.

Each runs in its own process, so the start of the interpreter counts.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

BLOCKS = 30  # copies of the network of the MNIST fixture: 21,300 distinct placements
MANY_BLOCKS = 355  # 252,000 distinct placements
LOGS = {  # number of lines, size of stdout's buffer, and copies of the network
    "200,000 lines": (200_000, 1, BLOCKS),
    "600,000 lines": (600_000, 1, BLOCKS),
    "600,000 lines, 10,000 torn records": (600_000, 4096, BLOCKS),
    "600,000 lines, 252,000 placements": (600_000, 1, MANY_BLOCKS),
    "600,000 lines, 252,000 placements, 10,000 torn records": (600_000, 4096, MANY_BLOCKS),
}
REGEX = (
    "import re, sys\n"
    r"pattern = rb'(\S+): \((\w+)\):? ?(/job:\S+)'" + "\n"
    "print(sum(1 for _ in re.finditer(pattern, open(sys.argv[1], 'rb').read())))"
)
PEAK = (  # started by a small process, because a child's peak includes its parent's memory
    "import os, subprocess, sys\n"
    "process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
    "print(os.wait4(process.pid, 0)[2].ru_maxrss)"
)
COMMANDS = {
    "placement-checks": [sys.executable, "-m", "placement_checks", "log"],
    "regex": [sys.executable, "-c", REGEX],
    "grep": ["grep", "-c", "/job:"],
}


def copies(placements: Iterator[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """The lines for stdout and for stderr: forms B1 and C, some lines of V and D, and other
    text.
    """
    for number, (node, op, device) in enumerate(placements):
        seconds, micros = divmod(number * 17, 1_000_000)
        prefix = f"2024-01-21 21:16:{seconds:02}.{micros:06}: I tensorflow/core/common_runtime/"
        record = f"{node}: ({op}): {device}\n"
        yield record, f"{prefix}placer.cc:125] {record}"
        if number % 20 == 0:
            yield "", f"{prefix}placer.cc:135] {node}({op}) placed on: {device}\n"
        if number % 20 == 10:
            yield "", f"{prefix}eager/execute.cc:1750] Executing op {op} in device {device}\n"
        if number % 50 == 0:
            yield f"step {number}: loss {1 / (number + 1):.6f}\n", ""


def write_log(path: Path, fixtures: Path, lines: int, block: int, blocks: int = BLOCKS) -> None:
    """A log of the given number of lines: stdout in blocks of bytes, stderr line by line."""
    truth = json.loads((fixtures / "logs" / "1.12.3" / "mnist.truth.json").read_text())
    graph = [
        (f"block_{copy}/{node}", op, device)
        for copy in range(blocks)
        for node, op, device, _ in truth["ops"]
    ]
    held = ""
    written = 0
    with path.open("w") as file:
        for plain, logged in copies(itertools.cycle(graph)):
            held += plain
            while len(held) >= block:
                file.write(held[:block])
                held = held[block:]
            file.write(logged)
            written += bool(plain) + bool(logged)
            if written >= lines:
                break
        file.write(held)


@pytest.fixture(scope="module", params=LOGS)
def log(
    request: pytest.FixtureRequest, fixtures: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    lines, block, blocks = LOGS[request.param]
    if request.config.getoption("benchmark_disable"):
        lines //= 20  # no figure is needed
    path = tmp_path_factory.mktemp("logs") / "train.log"
    write_log(path, fixtures, lines, block, blocks)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_reading(benchmark: BenchmarkFixture, log: Path, command: str) -> None:
    ran = benchmark.pedantic(
        lambda: subprocess.run([*COMMANDS[command], log], capture_output=True, check=True),
        rounds=5,
    )

    benchmark.extra_info["megabytes"] = round(log.stat().st_size / 1e6, 1)
    assert ran.stdout


def test_memory_does_not_grow_with_the_file(fixtures: Path, tmp_path: Path) -> None:
    """The larger log repeats every record of the smaller one several times."""
    peaks = []
    for lines in (180_000, 600_000):  # 26 and 88 MB
        log = tmp_path / f"{lines}.log"
        write_log(log, fixtures, lines, 4096)
        command = [sys.executable, "-c", PEAK, *COMMANDS["placement-checks"], str(log)]
        ran = subprocess.run(command, capture_output=True, check=True)
        peaks.append(int(ran.stdout) / 1024)

    assert peaks[1] < peaks[0] + 20
    assert peaks[1] < 100
