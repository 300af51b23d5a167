"""Modules that may not be there."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def module_or_none(name: str) -> ModuleType | None:
    """Import a module; None where it, or a package that it is in, does not exist.

    Raises:
        ModuleNotFoundError: it exists, and imports another that does not.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
