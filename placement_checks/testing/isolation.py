"""Keeps a test from changing what other tests find of TensorFlow. Loading it imports none."""

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


def undone(before: State | None) -> Iterator[str]:
    """Undo what a test did to TensorFlow; yields what of it breaks other tests.

    A test that loaded TensorFlow should leave it as it comes.
    """
    if _can_isolate():
        from placement_checks.loading.tf_state import State

        yield from (before or State()).restore()


def turned_off() -> str:
    """The call that changed what all tests build, such as ``disable_v2_behavior()``, or ``""``."""
    if not _can_isolate():
        return ""
    from placement_checks.loading.behaviour import Behaviour

    return Behaviour().changed()


def _can_isolate() -> bool:
    return "tensorflow" in sys.modules and _is_known()


@functools.cache
def _is_known() -> bool:
    """Whether this version of TensorFlow can be asked; if not, tests run in it all the same."""
    from placement_checks.loading.tf_state import State

    try:
        State.now()
    except PlacementError as error:
        warnings.warn(f"what tests do to TensorFlow is not undone: {error}", stacklevel=2)
        return False
    return True
