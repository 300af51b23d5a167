"""The request to a child process that captures a program, and how the process answers."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from placement_checks.capture.child_process.supervisor import Channels
from placement_checks.core.target import Script

_SOME = 64  # descriptors
DRIVER = Path("/dev/nvidiactl")  # exists if NVIDIA's driver is loaded


class CaptureRequest(NamedTuple):
    """A request to capture a program."""

    script: Script  # the program
    gpus: int  # the number of GPUs that the program finds
    python_path: str | None  # the user's `PYTHONPATH`; None if it is not set
    # Further directories of modules, such as the `sys.path` of a test that names a function.
    path: Sequence[str]
    names_gpus: bool  # whether the user has set `CUDA_VISIBLE_DEVICES`
    control: Path  # the directory of the capture's journal (`capture_files.CaptureFiles`)
    # A file that exists until it is the turn of this early capture; None if the capture is not
    # early.
    early: Path | None = None


def send_and_exit(answer: Any, channels: Channels) -> NoReturn:
    """Send a captured program or an error, and exit this process at once."""
    with contextlib.suppress(Exception):  # the program may have closed the streams
        sys.stdout.flush()
        sys.stderr.flush()
    gc.disable()
    status = 1
    try:
        try:
            descriptor = os.open(channels.answers, os.O_WRONLY)
        except OSError:
            os.closerange(3, _SOME)  # the program may have used up all descriptors
            descriptor = os.open(channels.answers, os.O_WRONLY)
        pipe = os.fstat(descriptor)
        if (pipe.st_dev, pipe.st_ino) == channels.pipe:
            with os.fdopen(descriptor, "wb") as stream:
                pickle.dump(answer, stream, pickle.HIGHEST_PROTOCOL)
            status = 0
    finally:  # the supervisor or the parent may have ended
        os._exit(status)
