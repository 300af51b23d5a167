"""The files of baselines: their names, and how they are read and written."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from placement_checks.baseline.parse import REWRITE, is_baseline, parse
from placement_checks.baseline.text import render
from placement_checks.core.baseline import Baseline
from placement_checks.core.errors import InputError, PlacementError, UsageError
from placement_checks.util.files import replace_file

SUFFIX: Final = ".txt"

_SPLIT = re.compile(
    r"(?P<path>[^:(]*?\.py|[\w.]+)(?::(?P<function>.*)| [^A-Za-z0-9]*(?P<arguments>.*))?",
    re.DOTALL,
)
_OTHERS = re.compile(r"[^A-Za-z0-9_.]+")
_BEGINNING = 1_000  # characters
_LONGEST = 100  # of a part of a name; file systems allow 255


def file_name(program: str, machine: str) -> str:
    """``mnist.build_towers.gpu-2.txt`` for ``fixtures/mnist.py:build_towers`` on ``gpu*2``.

    A whole program has its arguments in the place of the function.
    """
    match = _SPLIT.fullmatch(program)
    if match is None:
        name = program
    elif match["path"].endswith(".py"):
        name = Path(match["path"]).stem
    else:
        name = match["path"].rpartition(".")[2]
    inside = match and (match["function"] or match["arguments"])
    return f"{_plain(f'{name}.{inside}' if inside else name)}.{_plain(machine)}{SUFFIX}"


def _plain(text: str) -> str:
    """A text as part of a file's name; one that is too long is cut, with a digest."""
    plain = _OTHERS.sub("-", text).strip("-.") or "program"
    if len(plain) <= _LONGEST:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{plain[:_LONGEST]}-{digest}"


def read(file: Path) -> Baseline | None:
    """The baseline of a file; None where there is no file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InputError(str(file), "is no text, and so no baseline") from None
    except OSError as reason:
        raise InputError(str(file), reason.strerror or "cannot be read") from None
    return parse(text, str(file))


def read_target(target: str) -> Baseline | None:
    """The baseline that a target of a command names; None if it names something else.

    Raises:
        InputError: it is a baseline, and cannot be read, or an empty file.
    """
    file = Path(target)
    try:
        if not file.is_file():
            return None
        with open(file, encoding="utf-8", errors="replace") as opened:
            beginning = opened.read(_BEGINNING)
    except (OSError, ValueError):
        return None
    if not beginning:
        raise InputError(
            target,
            "is empty: neither a baseline nor a placement log",
            f"{REWRITE}; or keep the log again: python train.py > log 2>&1",
        )
    return read(file) if is_baseline(beginning) else None


def is_current(file: Path, baseline: Baseline) -> bool:
    """Whether a file says what a baseline does; versions alone do not count, so nothing churns."""
    try:
        old = read(file)
    except PlacementError:
        return False
    return old is not None and replace(old, versions=baseline.versions) == baseline


def write(file: Path, baseline: Baseline) -> bool:
    """Write a baseline where the file does not say the same; whether it was written.

    Raises:
        UsageError: it cannot be written; what it should have been is in the error's details.
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
            "apply what is printed above by hand, or make its folder writable",
            details=_changes(file, text),
        ) from None
    return True


def _changes(file: Path, text: str) -> str:
    try:
        old = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        old = ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), text.splitlines(keepends=True), str(file), str(file)
    )
    return "".join(lines)


def is_ci(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is continuous integration, as it says of itself."""
    return environment.get("CI", "").lower() not in ("", "0", "false")
