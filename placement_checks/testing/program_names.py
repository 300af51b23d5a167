"""Names of programs in messages of tests, where several tests may define equal functions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence


def program_name(evidence: Evidence) -> str:
    """The name of a program; for a function, its module and qualified name."""
    from placement_checks.core.program import Program  # imported late: the plugin loads fast

    name = evidence.placement.program
    program = evidence.program.program if evidence.program else None
    if not isinstance(program, Program) or ":" in name:
        return name
    function = program.build
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"
