"""Captures a program in a child process."""

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
from placement_checks.core.errors import InputError, PlacementError
from placement_checks.core.program import CapturedProgram
from placement_checks.core.target import Script
from placement_checks.tf1.renamed import environment as environment_of_version_1
from placement_checks.util.child import Child, Ended, end_group
from placement_checks.util.resources import gc_paused

# Seconds beyond the program's limit, to import TensorFlow and to record the graph.
_GRACE = 60.0
_CHILD = "placement_checks.capture.child_process.child"
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def capture_program(
    script: Script, gpus: int, environment: Mapping[str, str] = NO_VARIABLES
) -> CapturedProgram:
    """Run a program in a child process until its first training step, and return what it built.

    Args:
        script: the program.
        gpus: the number of GPUs that the program finds.
        environment: further environment variables of the program.

    Raises:
        InputError: the program failed before its first training step, ended without one, or
            exceeded its time limit.
    """
    with tempfile.TemporaryDirectory(prefix="placement_checks_") as directory:
        journal = Path(directory) / "set_aside"
        restored: Sequence[Path] = ()
        request = CaptureRequest(
            script,
            gpus,
            python_path=os.environ.get("PYTHONPATH"),
            path=sys.path if script.eager or script.ranks else (),
            names_gpus=VISIBLE_GPUS in os.environ,
            journal=journal,
        )
        try:
            answer = _request_answer(request, directory, environment)
        finally:
            restored = put_back(journal)
    if isinstance(answer, PlacementError):
        raise answer
    assert isinstance(answer, CapturedProgram)
    return replace(answer, notes=[*answer.notes, *file_guard_note(restored)])


def _request_answer(
    request: CaptureRequest, directory: str, variables: Mapping[str, str]
) -> object:
    """Start the child process, return its answer, and end all processes that it started.

    The child process exits without cleaning up, so its temporary files are in ``directory``.
    """
    script = request.script
    environment = {
        VISIBLE_GPUS: "-1",  # TensorFlow must allocate no memory of real GPUs
        **variables,
        "TMPDIR": directory,
        **(environment_of_version_1() if script.v1 else {}),
    }
    with Child(_CHILD, environment=environment, is_shown=True, forks=fork_server) as child:
        # Processes that the child started may keep its end of the pipe open after it ended.
        threading.Thread(target=_end_process_group, args=[child], daemon=True).start()
        try:
            with child.time_limit(script.limit + _GRACE), gc_paused():
                pickle.dump(request, child.requests)
                child.requests.close()
                return pickle.load(child.replies)
        except Ended as ended:
            raise InputError(
                script.target.name,
                f"its process {ended.how}, before its first training step",
                "run the program with python to see why",
            ) from None


def _end_process_group(child: Child) -> None:
    with contextlib.suppress(OSError):
        child.wait()
        end_group(child.pid)
