"""The user's source lines of an op: TensorFlow's, Python's and our own frames left out."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from placement_checks.core.placement import Frame

_OURS = Path(__file__).resolve().parents[1]
_BUILD = str(Path(__file__).resolve().with_name("building.py"))
_LIBRARIES = tuple(
    {
        str(Path(path).resolve()) + os.sep
        for scheme in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
        for path in [sysconfig.get_path(scheme)]
    }
    | {str(_OURS) + os.sep}
)


def users_frames(stack: Iterable[Any], folder: Path | None) -> tuple[Frame, ...]:
    """The user's frames of a traceback, the outermost first.

    What led to the call of a builder, if it was called by `building.build`, is left out, and so is
    every frame outside ``folder``, if one is given.
    """
    frames = [(frame.filename, frame.lineno, frame.name) for frame in stack]
    for position in range(len(frames) - 1, -1, -1):
        if frames[position][0] == _BUILD:
            frames = frames[position + 1 :]
            break
    return tuple(
        Frame(shown(file), line, function)
        for file, line, function in frames
        if is_users(file, folder)
    )


@lru_cache(maxsize=4096)
def is_users(file: str, folder: Path | None) -> bool:
    """Whether a file is the user's: in ``folder``, if one is given, and in no library."""
    path = Path(file).resolve()
    if not path.is_file() or str(path).startswith(_LIBRARIES) or "site-packages" in path.parts:
        return folder is not None and "site-packages" in folder.parts and _within(path, folder)
    return folder is None or _within(path, folder)


def _within(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) and not path.is_relative_to(_OURS)


def shown(file: str) -> str:
    """Relative to the current folder."""
    return _relative(file, Path.cwd())


@lru_cache(maxsize=4096)
def _relative(file: str, folder: Path) -> str:
    return os.path.relpath((folder / file).resolve(), folder)
