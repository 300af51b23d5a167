"""Judges programs, each in a process forked from one that has loaded TensorFlow."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from support.forked import printed, start_forked

from .normalizing import normalized
from .programs import ROOT, Program

ON_RUNS = ("gradients-equal", "weights-equal", "towers-overlap")
_LIMIT = 300.0  # seconds for a program, without the rules on runs
_LIMIT_OF_RUNS = 900.0
_LAST = 2000  # characters of standard error that a record keeps
_starting = threading.Lock()


def record(programs: Sequence[Program], out: Path, *, numbers: bool, jobs: int) -> None:
    """Judge programs, and write a file for each into a directory.

    A program that fails, ends its process or exceeds the time limit has a file with the error.
    """
    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(judge, each, numbers=numbers): each for each in programs}
        for count, future in enumerate(as_completed(futures), 1):
            program = futures[future]
            try:
                result = future.result()
            except Exception as error:  # its files cannot be created, for example
                result = {"name": program.name, "status": "not started", "output": str(error)}
            (out / file_name(program.name)).write_text(as_text(result), encoding="utf-8")
            seconds = time.monotonic() - begin
            print(f"[{count}/{len(programs)} {seconds:.0f} s] {program.name}", file=sys.stderr)


def judge(program: Program, *, numbers: bool) -> dict[str, Any]:
    """The record of a program: its name, the exit status, and the document of ``verify``.

    The cache of the command is ``XDG_CACHE_HOME``. A process with other environment variables than
    those of the server would import TensorFlow again.
    """
    runs = numbers and program.comparison is not None
    limit = _LIMIT_OF_RUNS if runs else _LIMIT
    without = () if runs else tuple(word for rule in ON_RUNS for word in ("--without", rule))
    # Captures of a program that run at the same time would compete with other programs.
    options = ["--format", "json", "--jobs", "1", *without]
    with tempfile.TemporaryDirectory(prefix="verdicts-") as name:
        files, own = Path(name, "files"), Path(name, "own")
        files.mkdir()
        own.mkdir()
        directory = program.prepare(files)
        environment = {
            **os.environ,
            **program.variables(directory),
            "TMPDIR": str(own),
        }
        arguments = ["-m", "placement_checks", "verify", *program.command(options, numbers=runs)]
        with tempfile.TemporaryFile() as errors:
            begin = time.monotonic()
            with _starting:  # the server is started once, and the working directory is changed
                process = start_forked(arguments, directory, environment, errors.fileno())
            out = printed(process, limit)
            status = process.wait()
            errors.seek(0)
            stderr = errors.read().decode(errors="replace")
        is_late = status < 0 and time.monotonic() - begin >= limit
        paths = {
            f"{directory}/": "",
            f"{files}/": "",
            str(files): "<directory>",
            str(own): "<temporary>",
            os.environ["XDG_CACHE_HOME"]: "<cache>",
            f"{ROOT}/": "<repository>/",
            sys.prefix: "<environment>",
        }
    result: dict[str, Any] = {"name": program.name, "status": "time limit" if is_late else status}
    try:
        result["document"] = normalized(json.loads(out), paths)
    except ValueError:
        result["output"] = normalized({"text": stderr[-_LAST:]}, paths)["text"]
    return result


def as_text(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1, ensure_ascii=False) + "\n"


def file_name(name: str) -> str:
    """A file name for the name of a program. The file contains the name itself."""
    readable = re.sub(r"[^\w.:=,*-]+", "_", name)
    return f"{readable[:150]}-{zlib.crc32(name.encode()):08x}.json"
