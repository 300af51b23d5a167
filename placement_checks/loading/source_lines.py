"""The user's source lines of an op: TensorFlow's, Python's and our own frames left out."""

from __future__ import annotations

import os
import re
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
# Code of the user's that is in no file: a cell of a notebook, a line at the prompt, a doctest,
# and what `exec` is given.
_UNSAVED = re.compile(r"<(ipython-input.*|stdin|doctest .*|string)>|.*/ipykernel_\d+/\d+\.py")
# What Python makes as text for a dataclass looks like the latter.
_GENERATED = ("<string>", "__init__")


def users_frames(stack: Iterable[Any], folder: Path | None) -> tuple[Frame, ...]:
    """The user's frames of a traceback, the outermost first.

    What led to the call of a builder, if it was called by `building.build`, is left out, and so is
    every frame outside ``folder``, if one is given.
    """
    frames = [(frame.filename, frame) for frame in stack]  # most are not the user's
    for position in range(len(frames) - 1, -1, -1):
        if frames[position][0] == _BUILD:
            frames = frames[position + 1 :]
            break
    here = current_folder()
    return tuple(
        Frame(_relative(file, here), frame.lineno, frame.name)
        for file, frame in frames
        if is_users(file, folder) and (file, frame.name) != _GENERATED
    )


@lru_cache(maxsize=4096)
def is_users(file: str, folder: Path | None) -> bool:
    """Whether a file is the user's: in ``folder``, if one is given, and in no library.

    It may be in an archive that modules are imported from. What was never in a file is his.
    """
    if _UNSAVED.fullmatch(file):
        return True
    path = Path(file).resolve()
    if not _is_there(path) or str(path).startswith(_LIBRARIES) or "site-packages" in path.parts:
        return folder is not None and "site-packages" in folder.parts and _within(path, folder)
    return folder is None or _within(path, folder)


def _is_there(path: Path) -> bool:
    """Whether it is a file, or seems to lie in one, as the modules of a zip do."""
    return path.is_file() or any(folder.is_file() for folder in path.parents)


def _within(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) and not path.is_relative_to(_OURS)


def shown(file: str) -> str:
    """Relative to the current folder; what was never in a file by its name."""
    return _relative(file, current_folder())


def current_folder() -> str:
    """What lines are told relative to."""
    return os.getcwd()  # noqa: PTH109  # asked for each op, and Path.cwd takes 15 us


@lru_cache(maxsize=4096)
def _relative(file: str, folder: str) -> str:
    if _UNSAVED.fullmatch(file):
        return file
    return os.path.relpath(Path(folder, file).resolve(), folder)
