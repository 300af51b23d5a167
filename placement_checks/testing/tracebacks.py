"""Shortens the tracebacks of errors to the test and the user's code.

If a builder raises an exception, `place` raises an `InputError` that names it. Its traceback then
continues in the builder, so that pytest shows the user's source lines and local variables, and
``--pdb`` starts there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from placement_checks.core.errors import DEBUG, PlacementError
from placement_checks.core.user_code import AUTOGRAPH_FILE

_PACKAGE: Final = __name__.partition(".")[0]
_FRAMEWORKS: Final = frozenset({"absl", "keras", "tensorflow", "tf_keras", "tf_slim", "wrapt"})
_HOOKS: Final = frozenset({f"{__package__}.pytest_plugin", f"{__package__}.verdicts"})


def shorten(error: BaseException) -> None:
    """Leave only the frames of the test and of the user's code in the traceback of an error.

    Frames of this package and of TensorFlow are removed. Internal errors keep all frames, and so
    do all errors if the environment variable for tracebacks is set. Errors that did not pass
    through this package are not changed.
    """
    if DEBUG in os.environ or error.__traceback__ is None:
        return
    entries = list(_entries(error.__traceback__))
    if isinstance(error, PlacementError):
        if error.kind == PlacementError.kind or not any(map(_is_ours, entries)):
            return
        users = entries_of_cause(error)
        cause = error.__cause__ or error.__context__
        if cause is not None and _is_raised_to_us(cause):
            error.__cause__, error.__suppress_context__ = None, True
    else:
        users = _entries_of_user(entries)
        if not users:
            return
    start = next(at for at, entry in enumerate(entries) if _is_ours(entry))
    if start:
        _link(entries[0], [*entries[1:start], *users])


def entries_of_cause(error: PlacementError) -> list[TracebackType]:
    """The frames of the user's code that raised the exception behind an error; may be empty."""
    origin: BaseException | None = error
    while isinstance(origin, PlacementError):
        origin = origin.__cause__ or origin.__context__
        if origin is None or not _is_raised_to_us(origin):
            return []
    assert origin is not None
    return _entries_of_user(list(_entries(origin.__traceback__)))


def _is_raised_to_us(error: BaseException) -> bool:
    """Whether this package has caught an exception, and not the test itself."""
    return error.__traceback__ is not None and _is_ours(error.__traceback__)


def _entries_of_user(entries: list[TracebackType]) -> list[TracebackType]:
    """The frames after the last frame of this package, if the user's code raised the exception."""
    ours = [at for at, entry in enumerate(entries) if _is_ours(entry)]
    if not ours:
        return []
    users = [entry for entry in entries[ours[-1] + 1 :] if not _is_internal(entry)]
    return users if any(map(_is_user, users)) else []


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _link(first: TracebackType, rest: list[TracebackType]) -> None:
    """Let a traceback continue with copies of other entries."""
    following = None
    for entry in reversed(rest):
        following = TracebackType(following, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    first.tb_next = following


def _is_ours(entry: TracebackType) -> bool:
    name = str(entry.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0] == _PACKAGE and name not in _HOOKS


def _is_internal(entry: TracebackType) -> bool:
    root = str(entry.tb_frame.f_globals.get("__name__")).partition(".")[0]
    return root in _FRAMEWORKS or AUTOGRAPH_FILE in entry.tb_frame.f_code.co_filename


def _is_user(entry: TracebackType) -> bool:
    from placement_checks.core.user_code import is_user_file

    return is_user_file(entry.tb_frame.f_code.co_filename, None)
