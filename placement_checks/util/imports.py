"""Imports of modules that may not be installed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def module_or_none(name: str) -> ModuleType | None:
    """Import a module; return None if the module or one of its packages does not exist.

    Raises:
        ModuleNotFoundError: the module exists, and imports another one that does not.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
