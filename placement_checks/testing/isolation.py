"""Keeps a test from changing the state of TensorFlow for others. Does not import it."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from placement_checks.core.errors import PlacementError

if TYPE_CHECKING:
    from placement_checks.loading.tf_state import State


def before_test() -> State | None:
    """What tests share of TensorFlow; None as long as nothing has loaded it."""
    if not _can_isolate():
        return None
    from placement_checks.loading.tf_state import State

    return State.now()


def restored(before: State | None) -> Iterator[str]:
    """Undo what a test did to TensorFlow; yields what of it breaks other tests.

    ``before`` is None where the test loaded it, which is then put back to how it starts.
    """
    if _can_isolate():
        from placement_checks.loading.tf_state import State

        yield from (before or State()).restore()


def global_change() -> str:
    """The call that changed what all tests build, such as ``disable_v2_behavior()``, or ``""``."""
    if not _can_isolate():
        return ""
    from placement_checks.loading.behaviour import Behaviour

    return Behaviour().changed()


def _can_isolate() -> bool:
    return "tensorflow" in sys.modules and _is_supported()


@functools.cache
def _is_supported() -> bool:
    """Whether this version's state can be read; if not, tests run without being isolated."""
    from placement_checks.loading.tf_state import State

    try:
        State.now()
    except PlacementError as error:
        warnings.warn(f"what tests do to TensorFlow is not undone: {error}", stacklevel=2)
        return False
    return True
