"""Remarks for the report of a captured program."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from placement_checks.capture.in_process.sessions import SeenStep, SessionWatch
from placement_checks.core.op_types import REF_VARIABLES
from placement_checks.core.target import GPUS, Script, uses_gpus
from placement_checks.core.user_code import relative_path
from placement_checks.tf1.lazy_modules import UsedNames
from placement_checks.util.text import join_and, listed, plural

_MOST_FILES = 1000  # in an examined directory; larger directories are skipped
_CLOCK = 0.1  # seconds; the recorded time of a new file may be this much too early


BEFORE_STEP = "before its first training step it"  # the subject of errors of programs


def session_notes(watch: SessionWatch) -> Sequence[str]:
    """Return remarks on the training step that a session would have run, if there is one."""
    if not watch.steps:
        return []
    steps = [step for step in watch.steps if step.updates]
    kinds = (
        "its first training step" if len(steps) == 1 else f"{len(steps)} different training steps"
    )
    notes = [f"run until {kinds}{_called_at(steps)}"]
    if never := sorted(op.name for op in watch.never_run):
        notes.append(f"{plural(len(never), 'op')} of optimizers never ran, such as {never[0]}")
    if (error := watch.later_error) is not None:
        what = error.message.replace(BEFORE_STEP, "it", 1)
        where = f"; {error.fix}" if error.fix else ""
        notes.append(f"then {what}, maybe because training steps return zeros here{where}")
    accumulating = [step for step in watch.steps if not step.updates]
    if accumulating:
        notes.append(
            f"the step applies gradients that {plural(len(accumulating), 'other run')} "
            f"accumulated{_called_at(accumulating)}; the rules check all these runs together"
        )
    elif watch.accumulations:
        notes.append(
            "earlier runs accumulate gradients; the rules check only the run that applies them"
        )
    if watch.servers:
        notes.append(f"no connection was made to {join_and(watch.servers)}")
    return notes


def _called_at(steps: Iterable[SeenStep]) -> str:
    lines = list(dict.fromkeys(step.called_at for step in steps if step.called_at))
    return f", at {join_and(lines)}" if lines else ""


def file_guard_note(restored: Sequence[Path]) -> Iterator[str]:
    """Yield a remark if the program changed or deleted files, which were restored."""
    if restored:
        files = [relative_path(str(path)) for path in dict.fromkeys(restored)]
        yield f"the program changes or deletes {listed(files)}; the originals are restored"


def created_path(script: Script, began: float, ended: float) -> tuple[str, str] | None:
    """Find a path in the arguments of a program that an earlier capture of it has created.

    A later capture of the program finds this path, and may fail because of it. ``began`` and
    ``ended`` are the times of the earlier capture, in seconds since the epoch. ``{gpus}`` is not
    yet replaced in the arguments of the script.

    Returns:
        The path, and the argument with ``{gpus}`` added to the path. None if there is no such
        path, or if it contains files that are older than the earlier capture.
    """
    here = Path.cwd()
    for text, option in _path_arguments(script):
        path = (here / text).resolve()
        if here.is_relative_to(path) or uses_gpus(text):
            continue
        created = _oldest_time(path)
        if created is not None and began - _CLOCK <= created <= ended:
            return text, option
    return None


def _path_arguments(script: Script) -> Iterator[tuple[str, str]]:
    """Yield each text that may be a path, and its argument with ``{gpus}`` added to the path."""
    flag = ""
    for argument in script.settings.args:
        name, _, value = argument.partition("=")
        if not argument.startswith("-"):
            yield argument, f"{flag}{_with_gpus(argument)}"
        elif value:
            yield value, f"{name}={_with_gpus(value)}"
        flag = f"{argument} " if argument.startswith("-") and not value else ""
    for name, value in script.settings.let.items():
        yield value, f"--let {name}={_with_gpus(value)}"


def _with_gpus(path: str) -> str:
    """The path with ``{gpus}`` at the end of its last name, before the suffix."""
    own = path.rstrip(os.sep)
    suffix = Path(own).suffix
    return f"{own.removesuffix(suffix)}{GPUS}{suffix}{path.removeprefix(own)}"


def _oldest_time(path: Path) -> float | None:
    """The modification time of the oldest file in a path; None if it is missing or too large."""
    try:
        times = [path.lstat().st_mtime]
        for entry in path.rglob("*") if path.is_dir() else ():
            times.append(entry.lstat().st_mtime)
            if len(times) > _MOST_FILES:
                return None
    except (OSError, ValueError):
        return None
    return min(times)


def version_1_notes(used: UsedNames, nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the remarks on a program of TensorFlow 1: its kind of variables, and missing names."""
    if any(node.op in REF_VARIABLES for node in nodes):
        yield "its variables are reference variables (VariableV2), as in TensorFlow 1"
    if used.missing:
        yield f"it uses {listed(used.missing)}, which --v1 does not provide"
