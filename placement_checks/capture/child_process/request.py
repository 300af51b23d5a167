"""The request to a child process that captures a program, and how the process answers."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from placement_checks.core.target import Script

DRIVER = Path("/dev/nvidiactl")  # exists if NVIDIA's driver is loaded


class CaptureRequest(NamedTuple):
    """A request to capture a program.

    Attributes:
        script: the program.
        gpus: the number of GPUs that the program finds.
        python_path: the user's ``PYTHONPATH``; None if it is not set.
        path: further directories of modules, such as the ``sys.path`` of a test that names a
            function.
        names_gpus: whether the user has set ``CUDA_VISIBLE_DEVICES``.
        journal: the journal of the user's files that are set aside.
        asked: the child creates this file when the program asks for the number of GPUs.
        early: a file that exists until it is the turn of this early capture; None if the capture
            is not early.
    """

    script: Script
    gpus: int
    python_path: str | None
    path: Sequence[str]
    names_gpus: bool
    journal: Path
    asked: Path
    early: Path | None = None


def send_and_exit(answer: Any, stream: BinaryIO) -> NoReturn:
    """Send a captured program or an error, and exit this process at once.

    If the parent has ended, wait until `end_with_parent` restores the files and ends this process.
    """
    with contextlib.suppress(Exception):  # the program may have closed the streams
        sys.stdout.flush()
        sys.stderr.flush()
    gc.disable()
    try:
        pickle.dump(answer, stream, pickle.HIGHEST_PROTOCOL)
        stream.flush()
    except BrokenPipeError:
        threading.Event().wait()
    os._exit(0)
