"""Which frames a failing test shows where what it gave is at fault, and not this package."""

from __future__ import annotations

import os
from types import TracebackType

from placement_checks.core.errors import DEBUG, PlacementError

_PACKAGE = __name__.partition(".")[0]
_AROUND_TESTS = f"{__package__}.pytest_plugin"


def leave_out_ours(error: BaseException) -> None:
    """End the traceback where the test calls us: the message says what is at fault, and of what.

    All of it stays with a fault of ours, and for who asks for tracebacks.
    """
    if isinstance(error, PlacementError) and error.kind != PlacementError.kind:
        theirs, following = None, error.__traceback__
        while following is not None and not _is_ours(following):
            theirs, following = following, following.tb_next
        if theirs is not None and DEBUG not in os.environ:
            theirs.tb_next = None


def _is_ours(entry: TracebackType) -> bool:
    name = str(entry.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0] == _PACKAGE and name != _AROUND_TESTS
