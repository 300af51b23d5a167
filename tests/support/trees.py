"""The state of all files in a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

Tree = Mapping[str, tuple[object, ...]]


def tree(directory: Path) -> Tree:
    """Describe all files below a directory.

    Directories have a mode, files also content, time and number of links. Files that are links of
    each other have the same first name.
    """
    found: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for path in sorted(directory.rglob("*")):
        name, status = str(path.relative_to(directory)), path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if path.is_symlink():
            found[name] = "link", os.readlink(path), status.st_mtime_ns
        elif path.is_dir():
            found[name] = "directory", mode
        else:
            same = first.setdefault(status.st_ino, name)
            times = status.st_mtime_ns, status.st_nlink
            found[name] = "file", path.read_bytes(), mode, *times, same
    return found


def changes(before: Tree, after: Tree, *, links: bool = True) -> list[str]:
    """The files of ``before`` that are different or missing in ``after``.

    Args:
        links: whether the number of links of a file counts.
    """
    last = None if links else -2
    return [name for name, what in before.items() if after.get(name, ())[:last] != what[:last]]
