"""Errors for the parts of Horovod that the stand-in lacks."""

from __future__ import annotations

from placement_checks.core.errors import InputError


def unsupported(what: str) -> InputError:
    """The error for a part of Horovod that the stand-in lacks, named like an argument."""
    return InputError(
        "horovod",
        f"{what} is not supported by --horovod",
        "remove it for the check; docs/horovod.md lists the supported names",
    )


def missing_attribute(module: str, name: str) -> AttributeError:
    """The error for a name that a module of the stand-in lacks.

    Python looks up names with underscores itself, and programs use ``hasattr``.
    """
    message = f"module '{module}' has no attribute '{name}'"
    if not name.startswith("_"):
        message += " in the stand-in of --horovod: docs/horovod.md lists its names"
    return AttributeError(message)
