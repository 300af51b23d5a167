"""What a trial is, and helpers to run the command and to compare files before and after."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

ROOT = Path(__file__).parents[2]
_TRACEBACK = "Traceback (most recent call last)"
_REPORT_IT = "and report it"  # the end of the message of an internal error


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Attributes:
        lost: the files that were changed or deleted although no message names them.
        wrong_verdict: how the exit status or report differs from the expected one; ``""`` if it
            does not.
        traceback: the output from a traceback or an internal error on; ``""`` without one.
        seconds: the duration of the command.
        megabytes: the largest resident memory of a process of the command.
        left_over: the processes and temporary files that remained.
    """

    lost: Sequence[str] = ()
    wrong_verdict: str = ""
    traceback: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0
    left_over: Sequence[str] = ()

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.wrong_verdict or self.traceback or self.left_over)


@dataclass(frozen=True)
class Trial:
    """One experiment. ``kind`` is the name of its class; ``run`` executes it."""

    kind: str
    name: str
    run: Callable[[], Outcome]


class Trials(Protocol):
    """A module with trials."""

    def trials(self, seed: int, count: int) -> Iterator[Trial]:
        """Yield at most ``count`` trials; equal seeds give equal trials."""


@dataclass(frozen=True)
class Execution:
    """A finished command.

    Attributes:
        status: the exit status, or the negative number of the signal that ended it.
        out, err: its output.
        seconds: its duration.
        megabytes: the largest resident memory of the command and of the processes it waited for.
    """

    status: int
    out: str
    err: str
    seconds: float
    megabytes: float

    @property
    def traceback(self) -> str:
        """The output from a traceback or an internal error on; ``""`` without one."""
        for text in (self.err, self.out):
            start = text.find(_TRACEBACK)
            if start < 0 and _REPORT_IT in text:
                start = 0
            if start >= 0:
                return text[start:]
        return ""


def execute(
    arguments: Sequence[str | Path],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    limit: float = 300.0,
    meanwhile: Callable[[int], object] | None = None,
    options: Sequence[str] = (),
    before: Callable[[], None] | None = None,
) -> Execution:
    """Run ``python -m placement_checks`` with arguments.

    Args:
        arguments: the arguments of the command.
        directory: the working directory.
        environment: all environment variables; by default those of this process.
        limit: seconds after which the command is killed.
        meanwhile: called once with the process ID, in a thread, as soon as the command runs.
        options: options of Python, such as ``-O``.
        before: called in the new process before the command starts.
    """
    variables = dict(os.environ if environment is None else environment)
    variables["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *options, "-m", "placement_checks", *map(str, arguments)],
            cwd=directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            process_group=0,
            preexec_fn=before,
        )
        watch = threading.Timer(limit, _kill, [process.pid])
        watch.start()
        if meanwhile is not None:
            threading.Thread(target=meanwhile, args=[process.pid], daemon=True).start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            watch.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        return Execution(
            process.returncode,
            _text(out),
            _text(err),
            time.monotonic() - began,
            usage.ru_maxrss / 1024,
        )


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def snapshot(directory: Path) -> dict[str, tuple[object, ...]]:
    """Describe all files below a directory: kind, mode, content, and for files mtime and links.

    Files that are links of each other have the same number of links and the same first name.
    """
    found: dict[str, tuple[object, ...]] = {}
    first: dict[tuple[int, int], str] = {}
    for parent, directories, files in os.walk(directory):
        for name in sorted(directories + files):
            path = Path(parent, name)
            key = str(path.relative_to(directory))
            status = path.lstat()
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("directory", mode)
            elif stat.S_ISREG(status.st_mode):
                same = first.setdefault((status.st_dev, status.st_ino), key)
                content = path.read_bytes()
                found[key] = ("file", mode, status.st_mtime_ns, status.st_nlink, same, content)
            else:
                found[key] = ("special", status.st_mode)
    return found


def changed(
    before: Mapping[str, tuple[object, ...]], after: Mapping[str, tuple[object, ...]]
) -> list[str]:
    """The names of files that are no longer as before. New files do not count."""
    return sorted(name for name, what in before.items() if after.get(name) != what)
