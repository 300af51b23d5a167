"""Remarks for the report of a captured program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from placement_checks.capture.in_process.sessions import SeenStep, SessionWatch
from placement_checks.core.op_types import REF_VARIABLES
from placement_checks.core.user_code import relative_path
from placement_checks.tf1.lazy_modules import UsedNames
from placement_checks.util.text import join_and, listed, plural


def session_notes(watch: SessionWatch) -> Sequence[str]:
    """Return the remarks on the training step that a session would have run; empty without one."""
    if not watch.steps:
        return []
    steps = [step for step in watch.steps if step.updates]
    kinds = (
        "its first training step" if len(steps) == 1 else f"{len(steps)} different training steps"
    )
    notes = [f"run until {kinds}{_called_at(steps)}"]
    if never := sorted(op.name for op in watch.never_run):
        notes.append(f"{plural(len(never), 'op')} of optimizers never ran, such as {never[0]}")
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
    """Yield a remark if the program deleted or overwrote files, which were restored."""
    if restored:
        files = [relative_path(str(path)) for path in dict.fromkeys(restored)]
        yield f"it deletes or overwrites {listed(files)}; the originals are restored"


def version_1_notes(used: UsedNames, nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the remarks on a program of TensorFlow 1: its kind of variables, and missing names."""
    if any(node.op in REF_VARIABLES for node in nodes):
        yield "its variables are reference variables (VariableV2), as in TensorFlow 1"
    if used.missing:
        yield f"it uses {listed(used.missing)}, which --v1 does not provide"
