"""What this process has open."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

OPEN = Path("/proc/self/fd")


def open_files() -> set[tuple[str, str]]:
    """The number and the file of each descriptor, after unreferenced ones are closed.

    To be compared by what is new, not by how many there are: threads of TensorFlow close theirs
    at any time.
    """
    gc.collect()
    files = set()
    for descriptor in OPEN.iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            files.add((descriptor.name, str(descriptor.readlink())))
    return files
