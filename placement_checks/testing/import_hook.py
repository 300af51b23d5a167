"""Asks TensorFlow for logical CPUs as soon as it is imported, and before it runs anything.

A conftest that computes something while it is imported would otherwise start TensorFlow with one.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


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
    from placement_checks.loading.simulated import ask_for_cpus

    ask_for_cpus(gpus + 1)
