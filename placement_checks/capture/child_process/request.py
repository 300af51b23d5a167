"""What the process that watches a program is asked, and how it answers."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from placement_checks.core.script import Script

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/dev/nvidiactl")  # there where NVIDIA's driver is loaded


class CaptureRequest(NamedTuple):
    """A request.

    Attributes:
        script: the program.
        gpus: how many GPUs it is told that there are.
        python_path: ``PYTHONPATH`` as the user has it; None where it is not set.
        path: where modules are looked for beside that, as a test that names a function has it.
        names_gpus: whether ``CUDA_VISIBLE_DEVICES`` is set there.
        journal: the file that notes which of the user's files are set aside.
    """

    script: Script
    gpus: int
    python_path: str | None
    path: Sequence[str]
    names_gpus: bool
    journal: Path


def end_with(answer: Any, stream: BinaryIO) -> NoReturn:
    """Answer with a recorded program or an error, and end this process at once."""
    with contextlib.suppress(Exception):  # the program may have closed them
        sys.stdout.flush()
        sys.stderr.flush()
    pickle.dump(answer, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()
    os._exit(0)
