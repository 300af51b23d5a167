"""The functions that targets name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placement_checks import Program
from placement_checks.targets.importing import resolve


def builder_of(target: str) -> Callable[..., Any]:
    """The function that builds the graph of a target which is no file of a graph."""
    program = resolve(target)
    assert isinstance(program, Program)
    return program.build
