"""What reading a long placement log costs, against a plain regular expression and grep.

All are processes of their own, so the start of the interpreter counts.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

LOGS = {  # lines, and bytes that stdout holds back
    "200,000 lines": (200_000, 1),
    "600,000 lines": (600_000, 1),
    "600,000 lines, 10,000 torn records": (600_000, 4096),
}
BLOCKS = 30  # copies of the network of the MNIST fixture: 21,300 distinct placements
REGEX = (
    "import re, sys\n"
    r"pattern = rb'(\S+): \((\w+)\):? ?(/job:\S+)'" + "\n"
    "print(sum(1 for _ in re.finditer(pattern, open(sys.argv[1], 'rb').read())))"
)
COMMANDS = {
    "placement-checks": [sys.executable, "-m", "placement_checks", "log"],
    "regex": [sys.executable, "-c", REGEX],
    "grep": ["grep", "-c", "/job:"],
}


def copies(placements: Iterator[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """The two copies of each record, stdout's first, as three versions print them in turn."""
    for number, (node, op, device) in enumerate(placements):
        seconds, micros = divmod(number * 17, 1_000_000)
        clock = f"21:16:{seconds % 60:02}.{micros:06}"
        plain = f"{node}: ({op}): {device}\n"
        version = number // 50_000 % 3
        if version == 0:
            prefix = f"2018-10-21 {clock}: I tensorflow/core/common_runtime/placer.cc:922] "
            yield plain, f"{prefix}{node}: ({op}){device}\n"
        elif version == 1:
            prefix = f"2024-01-21 {clock}: I tensorflow/core/common_runtime/placer.cc:125] "
            yield plain, prefix + plain
        else:
            yield plain, f"I0000 00:00:1795{seconds:06}.{micros:06}   19303 placer.cc:162] {plain}"
        if number % 20 == 0:
            eager = "I tensorflow/core/common_runtime/eager/execute.cc:1750] Executing op"
            yield "", f"2024-01-21 {clock}: {eager} {op} in device {device}\n"
        if number % 50 == 0:
            yield f"step {number}: loss {1 / (number + 1):.6f}\n", ""


def write_log(path: Path, fixtures: Path, lines: int, block: int) -> None:
    """A log of that many lines: stdout in blocks of so many bytes, stderr line by line."""
    truth = json.loads((fixtures / "logs" / "1.12.3" / "mnist.truth.json").read_text())
    graph = [
        (f"block_{block}/{node}", op, device)
        for block in range(BLOCKS)
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
    lines, block = LOGS[request.param]
    if request.config.getoption("benchmark_disable"):
        lines //= 20  # nothing is timed
    path = tmp_path_factory.mktemp("logs") / "train.log"
    write_log(path, fixtures, lines, block)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_reading(benchmark, log: Path, command: str) -> None:
    ran = benchmark.pedantic(
        lambda: subprocess.run([*COMMANDS[command], log], capture_output=True, check=True),
        rounds=5,
    )

    benchmark.extra_info["megabytes"] = round(log.stat().st_size / 1e6, 1)
    if command == "placement-checks":
        assert b"21,3" in ran.stdout or benchmark.disabled
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 300_000  # KiB
