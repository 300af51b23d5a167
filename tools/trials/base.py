"""What a trial is, how it runs the command, and how it compares files before and after."""

from __future__ import annotations

import contextlib
import os
import shutil
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

import psutil

ROOT = Path(__file__).parents[2]
_PACKAGE = str(ROOT / "placement_checks")
_TRACEBACK = "Traceback (most recent call last)"
_REPORT_IT = "and report it"  # the end of the message of an internal error
_PATIENCE = 10.0  # seconds until what a command leaves is gone


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
            if _REPORT_IT in text:
                return text
            for block in text.split(_TRACEBACK)[1:]:
                if _PACKAGE in block:  # otherwise it is of the program
                    return block
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


class Arena:
    """A directory for a trial, with files of a user and a directory for temporary files.

    Attributes:
        home: the user's files, and the working directory of commands.
        temporary: the directory for temporary files.
    """

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="trial_"))
        self.home = self._root / "home"
        self.temporary = self._root / "temporary"
        for directory in (self.home / "logs" / "old", self.home / "empty", self.temporary):
            directory.mkdir(parents=True)
        for name in ("model.ckpt", "old/events"):
            (self.home / "logs" / name).write_text("a week of training")
        (self.home / "notes.txt").write_text("notes")
        (self.home / "linked.txt").hardlink_to(self.home / "notes.txt")
        (self.home / "data.db").touch()
        (self.home / "link").symlink_to("logs")
        (self.home / "notes.txt").chmod(0o640)
        (self.home / "logs").chmod(0o750)
        for path in self.home.rglob("*"):
            os.utime(path, (1e9, 1e9), follow_symlinks=False)
        self._captures: set[str] = set()  # the names of directories of captures
        self._is_closed = threading.Event()
        threading.Thread(target=self._note_captures, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of commands."""
        return {
            **os.environ,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def write(self, name: str, text: str) -> None:
        """Add a file to the user's files."""
        (self.home / name).write_text(text)

    def run(
        self, run: Callable[[], Execution], statuses: Sequence[int], words: str = ""
    ) -> Outcome:
        """Run a command, and compare what it leaves with what was there before.

        Args:
            run: runs the command.
            statuses: the correct exit statuses.
            words: a part of a correct report.
        """
        before = snapshot(self.home)
        done = run()
        lost = changed(before, snapshot(self.home))
        wrong = ""
        if done.status not in statuses:
            wrong = f"status {done.status}, not {statuses}: {done.err[-2000:]}"
        elif words not in done.out + done.err:
            wrong = f"{words!r} is not in the report: {(done.out + done.err)[-2000:]}"
        left = self.left_over()
        outcome = Outcome(lost, wrong, done.traceback, done.seconds, done.megabytes, left)
        self.close()
        return outcome

    def left_over(self) -> Sequence[str]:
        """The processes and temporary files that remain after some time."""
        end = time.monotonic() + _PATIENCE
        while (left := self.left_over_now()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def left_over_now(self) -> Sequence[str]:
        """The processes and temporary files that exist now."""
        return [*self._files_left(), *self._processes()]

    def mount(self, size: int) -> Callable[[], int] | None:
        """Move all files to a disk of its own; return a function for its free bytes.

        None if this user may not mount.
        """
        with tempfile.TemporaryDirectory() as copy:
            subprocess.run(["cp", "-a", f"{self._root}/.", copy], check=True)
            disk = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self._root)]
            if subprocess.run(disk, stderr=subprocess.DEVNULL).returncode:
                return None
            subprocess.run(["cp", "-a", f"{copy}/.", str(self._root)], check=True)
        return lambda: shutil.disk_usage(self._root).free

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self._root)], check=True)
        shutil.rmtree(self._root, ignore_errors=True)

    def _files_left(self) -> Iterator[str]:
        for directory in (self.home, *self.home.parents):
            for name in self._captures:
                if (hidden := directory / f".{name}").exists():
                    yield str(hidden)
        yield from map(str, self.temporary.glob("*placement_checks*"))

    def _processes(self) -> Iterator[str]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(
                    self._root
                ):
                    yield f"process {process.pid}: {' '.join(process.cmdline())[:200]}"

    def _note_captures(self) -> None:
        while not self._is_closed.wait(0.02):
            self._captures |= {
                path.name for path in self.temporary.glob("placement_checks_capture_*")
            }

    def close(self) -> None:
        """Delete all files."""
        self._is_closed.set()
        for left in self._processes():
            with contextlib.suppress(OSError):
                os.kill(int(left.split()[1].rstrip(":")), signal.SIGKILL)
        shutil.rmtree(self._root, ignore_errors=True)


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
