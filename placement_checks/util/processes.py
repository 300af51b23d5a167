"""Processes of this package's own, in which TensorFlow is loaded apart from the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO


def start(
    module: str, *arguments: str, environment: dict[str, str], stderr: BinaryIO
) -> subprocess.Popen[bytes]:
    """Run a module of this package with pipes to its standard input and output.

    It is in a process group of its own: Ctrl-C in a terminal is for the parent, which decides.

    Args:
        module: its name, such as ``placement_checks.placer.worker.main``.
        arguments: for it.
        environment: what is set beside what this process has.
        stderr: where its errors go.
    """
    # -P, and our own folder on the path instead: the user's folder may hold a numpy.py.
    home = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        process_group=0,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def ending(code: int) -> str:
    """How a process ended, in words, by its return code as `subprocess` has it."""
    if code == -signal.SIGKILL:
        return "was ended by SIGKILL, as the kernel does where memory runs out"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def end_with(parent: int) -> None:
    """End this process when the process ``parent`` is gone, whatever it does then: its input may
    be held open by processes that were forked from the parent.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
