"""The result of a run of the command, and runs of many commands in other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output with single spaces instead of line breaks."""
        return " ".join(self.out.split())


Run = Callable[..., Ran]


_FORKS = """
import json
import os
import sys

from placement_checks.cli import diff, log, main, place, time, verify

for number, call in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
        sys.argv = ["placement-checks", *call.split()]
        main()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def run_apart(
    calls: Iterable[str],
    folder: Path,
    before: str = "",
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Ran]:
    """Run commands in a directory, each in a fork of one process that has loaded the package.

    Args:
        calls: the arguments of each command, which contain no space.
        folder: the current directory, in which their output is saved too.
        before: code that runs before the package is loaded.
        environment: all environment variables.
    """
    calls = [*calls]
    done = subprocess.run(
        [sys.executable, "-c", before + _FORKS, json.dumps(calls)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    printed = (
        [(folder / f"{number}.{name}").read_text() for name in ("out", "err")]
        for number in range(len(calls))
    )
    statuses = map(int, done.stdout.split())
    return {
        call: Ran(status, out, err)
        for call, status, (out, err) in zip(calls, statuses, printed, strict=True)
    }
