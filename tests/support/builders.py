"""The functions and scripts that targets name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placement_checks.core.target import Script, Target
from placement_checks.targets.forms import parse_target
from placement_checks.targets.importing import import_program


def builder_of(target: str) -> Callable[..., Any]:
    """The function that builds the graph of a target which is no file of a graph."""
    return import_program(parse_target(target)).build


def script(text: str, args: tuple[str, ...] = (), **fields: Any) -> Script:
    """The script of a target, whose file need not exist."""
    path, _, function = text.rpartition(":") if ":" in text else (text, "", "")
    target = Target("function" if function else "program", text, path, function)
    return Script(target, args, **fields)
