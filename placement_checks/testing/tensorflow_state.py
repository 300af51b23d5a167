"""Isolates tests from changes to the global state of TensorFlow, and requests logical CPUs.

The module does not import TensorFlow.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from placement_checks.core.errors import PlacementError
from placement_checks.util.imports import Load, Others, Redirector, around_loading

if TYPE_CHECKING:
    from placement_checks.tf.process_state import GlobalState


def current_state() -> GlobalState | None:
    """The global state of TensorFlow; None if TensorFlow is not imported or cannot be read.

    The first call warns if the state of this version of TensorFlow cannot be read.
    """
    if "tensorflow" in sys.modules:
        _warn_if_unsupported()
    if not _can_isolate():
        return None
    from placement_checks.tf.process_state import GlobalState

    return GlobalState.current()


def restore(before: GlobalState | None) -> Iterator[str]:
    """Undo the changes of a test to TensorFlow, and yield the changes that break other tests.

    Args:
        before: the state before the test. None means that the test imported TensorFlow, and
            restores the initial state.
    """
    if _can_isolate():
        from placement_checks.tf.process_state import GlobalState

        yield from (before or GlobalState()).restore()


def global_change() -> str:
    """The call that changed TensorFlow for all tests, ``disable_v2_behavior()``, or ``""``."""
    if not _can_isolate():
        return ""
    from placement_checks.tf.process_state import Behavior

    return Behavior().changing_call()


def _can_isolate() -> bool:
    return "tensorflow" in sys.modules and not _why_unsupported()


@functools.cache
def _why_unsupported() -> str:
    """Why the state of this TensorFlow version cannot be read; tests are then not isolated."""
    from placement_checks.tf.process_state import GlobalState

    try:
        GlobalState.current()
    except PlacementError as error:
        return str(error)
    return ""


@functools.cache
def _warn_if_unsupported() -> None:
    if reason := _why_unsupported():
        warnings.warn(f"changes of tests to TensorFlow are not undone: {reason}", stacklevel=2)


def request_cpus_on_import(gpus: int) -> None:
    """Request a logical CPU for each of ``gpus`` GPUs, and ``CPU:0``, when TensorFlow is imported.

    A conftest that runs ops during its import would otherwise start TensorFlow with one CPU.
    """
    if "tensorflow" in sys.modules:
        _request_cpus(gpus)
        return

    def load(own: Load, module: ModuleType) -> None:
        redirector.remove()
        own(module)
        _request_cpus(gpus)

    # Installed until TensorFlow is imported: some code only looks for the module, to know whether
    # TensorFlow is installed.
    def find(name: str, others: Others) -> ModuleSpec | None:
        spec = others() if name == "tensorflow" else None
        return None if spec is None or spec.loader is None else around_loading(spec, load)

    redirector = Redirector(find)
    redirector.install()


def _request_cpus(gpus: int) -> None:
    from placement_checks.tf.simulated_devices import configure_logical_cpus

    configure_logical_cpus(gpus + 1)
