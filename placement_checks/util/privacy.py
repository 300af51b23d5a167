"""Removes private names from text that users send to others, such as bug reports."""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from pathlib import Path

# An absolute path of two parts or more. Device names such as /job:ps/task:0 contain colons.
_PATH = re.compile(r"(?<![\w.:~@-])/(?:[\w.@+~-]+/)+[\w.@+~-]*")
_SHORTEST = 3  # characters of a name that is replaced
_PUBLIC = {"root", "localhost"}


def without_private_names(text: str) -> str:
    """Shorten absolute paths to their last part, and replace the names of user and machine."""
    with contextlib.suppress(RuntimeError):  # the user has no home directory
        text = text.replace(str(Path.home()) + "/", "~/")
    text = _PATH.sub(_last_part, text)
    for name, stand_in in _private_names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", stand_in, text)
    return text


def _last_part(path: re.Match[str]) -> str:
    *_, last = path[0].rstrip("/").split("/")
    return "…" if _is_home(path[0].rstrip("/")) else f"…/{last}"


def _is_home(path: str) -> bool:
    with contextlib.suppress(RuntimeError):
        return Path(path) == Path.home()
    return False


def _private_names() -> list[tuple[str, str]]:
    names = [(socket.gethostname(), "<host>")]
    with contextlib.suppress(OSError, KeyError):  # the user's ID has no name
        names.append((getpass.getuser(), "<user>"))
    return [
        (name, stand_in)
        for name, stand_in in names
        if len(name) >= _SHORTEST and name not in _PUBLIC
    ]
