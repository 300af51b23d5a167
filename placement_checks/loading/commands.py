"""Commands of the shell that others stand in for, first on the path."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def standing_in(name: str, script: Callable[[Path], str]) -> Iterator[Path]:
    """Put a command before all others of its name in this block.

    Args:
        name: of the command.
        script: what it is, for the folder in which it lies.

    Yields:
        That folder, which is removed at the end.
    """
    owner = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="placement_checks_"))
    command = folder / name
    command.write_text(script(folder))
    command.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    try:
        yield folder
    finally:
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(each for each in path if each != str(folder))
        if os.getpid() == owner:  # not in a process that the program has forked
            shutil.rmtree(folder, ignore_errors=True)
