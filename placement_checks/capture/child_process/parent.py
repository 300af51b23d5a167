"""Watches a program in a process of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from placement_checks.capture.child_process.file_journal import put_back
from placement_checks.capture.child_process.fork_server import fork_server
from placement_checks.capture.child_process.notes import file_guard_note
from placement_checks.capture.child_process.request import VISIBLE_GPUS, CaptureRequest
from placement_checks.capture.child_process.snapshot import RecordedProgram
from placement_checks.core.errors import InputError, PlacementError
from placement_checks.core.script import Script
from placement_checks.tf1.renamed import environment as environment_of_version_1
from placement_checks.util.child import Child, Ended, end_group

_GRACE = 60.0  # seconds beyond the program's limit: importing TensorFlow, and recording the graph
_CHILD = "placement_checks.capture.child_process.child"
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
_HIDDEN = {VISIBLE_GPUS: "-1"}  # so that it takes no memory of real GPUs


def watched(
    script: Script, gpus: int, environment: Mapping[str, str] = NO_VARIABLES
) -> RecordedProgram:
    """What a program has built when it comes to its first training step.

    Args:
        script: the program.
        gpus: how many GPUs it is told that there are.
        environment: variables that it finds beside those of this process.

    Raises:
        InputError: it failed before, never trains, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="placement_checks_") as folder:
        journal = Path(folder) / "set_aside"
        kept: Sequence[Path] = ()
        try:
            python_path, names_gpus = os.environ.get("PYTHONPATH"), VISIBLE_GPUS in os.environ
            path = sys.path if script.eager else ()
            asked = CaptureRequest(script, gpus, python_path, path, names_gpus, journal)
            answer = _answer(asked, folder, environment)
        finally:
            kept = put_back(journal)
    if isinstance(answer, PlacementError):
        raise answer
    assert isinstance(answer, RecordedProgram)
    return replace(answer, notes=[*answer.notes, *file_guard_note(kept)])


def _answer(asked: CaptureRequest, folder: str, variables: Mapping[str, str]) -> object:
    """What the process answers, which is ended with all that it has started.

    Its temporary files are in ``folder``, as it does not end by itself.
    """
    script = asked.script
    environment = {
        **_HIDDEN,
        **variables,
        "TMPDIR": folder,
        **(environment_of_version_1() if script.v1 else {}),
    }
    with Child(_CHILD, environment=environment, is_shown=True, forks=fork_server) as child:
        # What it has started may hold its side of the pipe when it is gone.
        threading.Thread(target=_end_rest, args=[child], daemon=True).start()
        try:
            with child.time_limit(script.limit + _GRACE):
                pickle.dump(asked, child.requests)
                child.requests.close()
                return pickle.load(child.replies)
        except Ended as ended:
            raise InputError(
                script.target,
                f"its process {ended.how}, before its first training step",
                "see what python says when it runs the program",
            ) from None


def _end_rest(child: Child) -> None:
    """End what a process has started, once it has ended itself."""
    with contextlib.suppress(OSError):
        child.wait()
        end_group(child.pid)
