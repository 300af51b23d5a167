"""The cost of a command, including all processes that it waits for.

As a script, ``python processes.py COMMAND…``, it runs the command and prints its cost as JSON.
This separate script is small on purpose, because the peak memory of a process includes the memory
of the process that forked it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Users have bytecode of the package; the first of several runs may write it.
WITH_BYTECODE = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}


class Cost(NamedTuple):
    """The cost of a command.

    Attributes:
        wall: seconds.
        cpu: user and system CPU seconds of all its processes.
        peak: the memory of the largest of these processes, in GB.
        status: its exit status.
    """

    wall: float
    cpu: float
    peak: float
    status: int


def cost(
    *command: str | Path,
    statuses: Sequence[int] = (0,),
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Cost:
    """Run a command without its output, and check its exit status."""
    ran = subprocess.run(
        [sys.executable, "-S", __file__, *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=cwd,
        env={**WITH_BYTECODE, **(environment or {})},
    )
    took = Cost(**json.loads(ran.stdout))
    assert took.status in statuses, command
    return took


def _run(command: Sequence[str]) -> Cost:
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    return Cost(
        time.perf_counter() - began,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss * 1024 / 1e9,
        os.waitstatus_to_exitcode(status),
    )


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1:])._asdict()))
