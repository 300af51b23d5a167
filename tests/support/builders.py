"""Builders and scripts for the text of a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placement_checks.core.settings import Settings
from placement_checks.core.target import Script, Target
from placement_checks.targets.forms import parse_target
from placement_checks.targets.importing import import_program


def builder_of(target: str) -> Callable[..., Any]:
    """The builder that a target names. The target must not be a graph file."""
    return import_program(parse_target(target)).build


def script(text: str, args: tuple[str, ...] = (), **fields: Any) -> Script:
    """The script of a target. The file need not exist."""
    path, _, function = text.rpartition(":") if ":" in text else (text, "", "")
    target = Target("function" if function else "program", text, path, function)
    return Script(target, Settings(args=args, **fields))
