"""What a report says of a program that was watched, beside the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from placement_checks.capture.in_process.recorder import BuildRecorder
from placement_checks.capture.in_process.sessions import SeenStep, Watch
from placement_checks.core.op_types import REF_VARIABLES
from placement_checks.core.user_code import relative_path
from placement_checks.tf1.lazy_modules import UsedNames
from placement_checks.util.text import join_and, plural

_MOST = 3  # names in a note


def notes_of(building: BuildRecorder) -> Sequence[str]:
    """What a report says of the step of a session that was watched; of none, nothing."""
    return session_notes(building.watch) if building.watch.steps else []


def session_notes(watch: Watch) -> Sequence[str]:
    """What a report says of the step that a session would have run."""
    steps = [step for step in watch.steps if step.updates]
    kinds = (
        "its first training step" if len(steps) == 1 else f"{len(steps)} different training steps"
    )
    notes = [f"watched until {kinds}{_at(steps)}"]
    if never := sorted(op.name for op in watch.never_run):
        notes.append(f"{plural(len(never), 'op')} of optimisers never ran, such as {never[0]}")
    accumulating = [step for step in watch.steps if not step.updates]
    if accumulating:
        notes.append(
            f"the step applies gradients that {plural(len(accumulating), 'other run')} "
            f"accumulated{_at(accumulating)}; they are judged together"
        )
    elif watch.has_kept_gradients:
        notes.append(
            "runs before it add up gradients; what is judged is the run that applies them, and "
            "not those"
        )
    if watch.servers:
        notes.append(f"nothing was sent to {join_and(watch.servers)}")
    return notes


def _at(steps: Iterable[SeenStep]) -> str:
    places = list(dict.fromkeys(step.called_at for step in steps if step.called_at))
    return f", at {join_and(places)}" if places else ""


def file_guard_note(kept: Sequence[Path]) -> Iterator[str]:
    """That a program deletes or overwrites files, which are put back."""
    if kept:
        files = [relative_path(str(path)) for path in dict.fromkeys(kept)]
        yield f"it deletes or overwrites {join_and(files[:_MOST])}; what was there is put back"


def version_1_notes(used: UsedNames, nodes: Iterable[Any]) -> Iterator[str]:
    """With which kind of variables a program of TensorFlow 1 was judged, and what it lacked."""
    if any(node.op in REF_VARIABLES for node in nodes):
        yield "its variables are references (VariableV2), as TensorFlow 1 makes them"
    if used.missing:
        more = len(used.missing) - _MOST
        others = f" and {more} others" if more > 0 else ""
        yield f"--v1 has no {', '.join(used.missing[:_MOST])}{others}, which it asked for"
