"""Decide whose ``pyproject.toml`` is used.

`verification.configuration.load` searches the working directory and its parents, so a user may not
know the file that it finds. In a directory that several users may write, such as ``/tmp``, it may
be the file of another user. It names code that runs. So the file, and the code that it names, must
belong to root or to the user who runs the command, as for git (``safe.directory``).

Two rules make exceptions, because owners and modes show less in containers:

* Root may also use files of the owner of the working directory. In containers, root often tests a
  checkout that belongs to another user. Root has entered this directory on purpose, and its owner
  could replace any file in it. The file of a third user in a parent directory is still refused.
* Modes count only for files outside of the working directory, and only if the working directory
  itself is not writable for all users. Some CI services and mounted file systems let all users
  write everywhere. There, another user could also change the programs themselves.

A group may always write: in a team, or with private groups and the umask 002, it does. The sticky
bit makes no difference: in such a directory, another user cannot replace a file, but can add
modules that a program imports.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from placement_checks.core.errors import ConfigError

TRUST: Final = "PLACEMENT_CHECKS_TRUST"  # environment variable: directories, separated by ":"
_ROOT: Final = 0

_named: ContextVar[tuple[Path, ...]] = ContextVar("_named", default=())


@contextlib.contextmanager
def trusting(directories: Iterable[str | Path]) -> Iterator[None]:
    """Accept all files below these directories in the block, whoever owns them."""
    token = _named.set((*_named.get(), *(Path(each).resolve() for each in directories)))
    try:
        yield
    finally:
        _named.reset(token)


def check_trusted(file: Path) -> None:
    """Check that only root and the current user can have written a file.

    Raises:
        ConfigError: another user may have written it; the message names the option that accepts
            the directory.
    """
    if reason := untrusted_reason(file):
        directory = file.parent.resolve()
        raise ConfigError(
            str(file),
            reason,
            f"if you trust its content, pass --trust {directory} (pytest: "
            f"--placement-trust={directory}), or set {TRUST}={directory}",
            is_predicate=True,
        )


def untrusted_reason(file: Path) -> str:
    """Why another user may have written a file, as a predicate; ``""`` if no other user can."""
    resolved = file.resolve()
    if any(map(resolved.is_relative_to, _trusted_directories())):
        return ""
    here = Path.cwd()
    users = {_ROOT, os.geteuid()}
    if os.geteuid() == _ROOT:
        users.add(here.stat().st_uid)
    checks_modes = not resolved.is_relative_to(here) and not _everyone_writes(here)
    # A link belongs to a user, too. The owner of a directory can replace the files in it.
    for path in (file, resolved, file.parent, resolved.parent):
        what = "" if path in (file, resolved) else "is in a directory that "
        for status in (path.lstat(), path.stat()):
            if status.st_uid not in users:
                return f"{what}belongs to the user {_user_name(status.st_uid)}"
        if checks_modes and _everyone_writes(path):
            return f"{what}every user can write" if what else "can be written by every user"
    return ""


def _trusted_directories() -> Iterator[Path]:
    for entry in os.environ.get(TRUST, "").split(os.pathsep):
        if entry:
            yield Path(entry).resolve()
    yield from _named.get()


def _everyone_writes(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IWOTH)


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
