"""Keeps a test from changing the state of TensorFlow for others. Does not import it.

Asks TensorFlow for logical CPUs as soon as it is imported, and before it runs anything.

A conftest that computes something while it is imported would otherwise start TensorFlow with one.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from placement_checks.core.errors import PlacementError

if TYPE_CHECKING:
    from placement_checks.tf.process_state import GlobalState


def before_test() -> GlobalState | None:
    """What tests share of TensorFlow; None as long as nothing has loaded it."""
    if not _can_isolate():
        return None
    from placement_checks.tf.process_state import GlobalState

    return GlobalState.current()


def restored(before: GlobalState | None) -> Iterator[str]:
    """Undo what a test did to TensorFlow; yields what of it breaks other tests.

    ``before`` is None where the test loaded it, which is then put back to how it starts.
    """
    if _can_isolate():
        from placement_checks.tf.process_state import GlobalState

        yield from (before or GlobalState()).restore()


def global_change() -> str:
    """The call that changed what all tests build, such as ``disable_v2_behavior()``, or ``""``."""
    if not _can_isolate():
        return ""
    from placement_checks.tf.process_state import Behavior

    return Behavior().changed()


def _can_isolate() -> bool:
    return "tensorflow" in sys.modules and _is_supported()


@functools.cache
def _is_supported() -> bool:
    """Whether this version's state can be read; if not, tests run without being isolated."""
    from placement_checks.tf.process_state import GlobalState

    try:
        GlobalState.current()
    except PlacementError as error:
        warnings.warn(f"what tests do to TensorFlow is not undone: {error}", stacklevel=2)
        return False
    return True


def request_cpus_on_import(gpus: int) -> None:
    """Let TensorFlow have as many logical CPUs as stand in for ``gpus`` GPUs, and ``CPU:0``."""
    if "tensorflow" in sys.modules:
        _ask(gpus)
    else:
        sys.meta_path.insert(0, _Finder(gpus))


class _Finder:
    """Leaves finding TensorFlow to the real finders, and asks for CPUs when it is loaded."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _ask(self._gpus)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _ask(gpus: int) -> None:
    from placement_checks.tf.simulated_devices import configure_logical_cpus

    configure_logical_cpus(gpus + 1)
