"""Names, reads and writes the files of baselines."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from placement_checks.baseline.text import is_baseline, parse, render, rewrite_command
from placement_checks.core import limits
from placement_checks.core.baseline import Baseline
from placement_checks.core.errors import InputError, PlacementError, UsageError
from placement_checks.core.input_files import read_text
from placement_checks.util.files import replace_file

SUFFIX: Final = ".toml"

_TARGET = re.compile(
    r"(?P<path>[^:(]*?\.py|[\w.]+)(?::(?P<function>.*)| [^A-Za-z0-9]*(?P<arguments>.*))?",
    re.DOTALL,
)
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.]+")
_HEAD_LENGTH = 1_000  # characters, enough to recognize a baseline
_MAX_LENGTH = 100  # characters of a part of a file name; file systems allow 255


def file_name(program: str, machine: str) -> str:
    """Returns the name of the file for a program and a machine.

    For ``train/mnist.py:build_towers`` on ``gpu*2`` it is ``mnist.build_towers.gpu-2.toml``. For
    a whole program the arguments follow in place of the function.
    """
    match = _TARGET.fullmatch(program)
    if match is None:
        name = program
    elif match["path"].endswith(".py"):
        name = Path(match["path"]).stem
    else:
        name = match["path"].rpartition(".")[2]
    inside = match and (match["function"] or match["arguments"])
    return f"{_plain(f'{name}.{inside}' if inside else name)}.{_plain(machine)}{SUFFIX}"


def _plain(text: str) -> str:
    """Returns a text as part of a file name; a digest replaces the end of a long text."""
    plain = _NOT_PLAIN.sub("-", text).strip("-.") or "program"
    if len(plain) <= _MAX_LENGTH:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{plain[:_MAX_LENGTH]}-{digest}"


def read(file: Path) -> Baseline | None:
    """Returns the baseline of a file; None if the file does not exist.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        text = read_text(file, limits.BASELINE_BYTES)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InputError(
            str(file), "is not a text file, so it is not a baseline", is_predicate=True
        ) from None
    except OSError as reason:
        raise InputError(str(file), reason.strerror or "cannot be read") from None
    return parse(text, str(file))


def read_target(target: str) -> Baseline | None:
    """Returns the baseline that a target of a command names; None for any other target.

    Raises:
        InputError: the file is empty, or it is a baseline that cannot be parsed.
    """
    file = Path(target)
    head = _head(file)
    if head is None:
        return None
    if not head:
        raise InputError(
            target,
            "is empty, so it is neither a baseline nor a placement log",
            f"{rewrite_command(target)}; or write the log again: python train.py > log 2>&1",
            is_predicate=True,
        )
    return read(file) if is_baseline(head) else None


def is_baseline_file(file: Path) -> bool:
    """Whether a file begins like a baseline."""
    return is_baseline(_head(file) or "")


def _head(file: Path) -> str | None:
    """The beginning of a file; None if it cannot be read, such as a pipe."""
    try:
        if not file.is_file():
            return None
        with open(file, encoding="utf-8-sig", errors="replace") as opened:
            return opened.read(_HEAD_LENGTH)
    except (OSError, ValueError):
        return None


def is_current(file: Path, baseline: Baseline) -> bool:
    """Whether a file contains a baseline, apart from the versions that wrote it.

    Files are not written again for a new version, so that commits do not contain such changes.
    """
    try:
        old = read(file)
    except PlacementError:
        return False
    if old is None:
        return False
    return render(replace(old, versions=baseline.versions)) == render(baseline)


def write(file: Path, baseline: Baseline) -> bool:
    """Writes a baseline unless the file is current; returns whether it was written.

    Raises:
        UsageError: the file cannot be written; the error's details contain the changes as a diff.
    """
    if is_current(file, baseline):
        return False
    text = render(baseline)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text)
    except OSError as reason:
        raise UsageError(
            str(file),
            f"cannot be written: {reason.strerror or reason}",
            "apply the diff above by hand, or make the directory writable",
            details=_diff(file, text),
            is_predicate=True,
        ) from None
    return True


def _diff(file: Path, text: str) -> str:
    try:
        old = read_text(file, limits.BASELINE_BYTES)
    except (OSError, UnicodeDecodeError, InputError):
        old = ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), text.splitlines(keepends=True), str(file), str(file)
    )
    return "".join(lines)


def is_ci() -> bool:
    """Whether the environment variable CI is set, as continuous integration services do."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")
