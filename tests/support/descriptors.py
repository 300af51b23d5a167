"""The open files of this process."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

OPEN = Path("/proc/self/fd")


def open_files() -> set[tuple[str, str]]:
    """The number and file of each open descriptor, after garbage collection.

    Compare the new descriptors instead of the number of descriptors, because threads of TensorFlow
    close some at any time.
    """
    gc.collect()
    files = set()
    for descriptor in OPEN.iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            files.add((descriptor.name, str(descriptor.readlink())))
    return files
