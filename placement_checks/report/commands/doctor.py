"""Renders the checks of a machine as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from placement_checks.core.checkup import Checkup, State
from placement_checks.report.common.json import VERSION, JsonObject, Versions, to_json
from placement_checks.util.text import join_and, printable


def render_text(checkup: Checkup) -> str:
    """Returns a line for each check, and the conclusion."""
    lines = [*check_lines(checkup), "", conclusion(checkup)]
    return "\n".join(map(printable, lines)) + "\n"


def check_lines(checkup: Checkup) -> Iterator[str]:
    """Yields a line for each check: its state, its name, the facts found and the fix."""
    widest = max(len(check.name) for check in checkup.checks)
    for check in checkup.checks:
        fix = f"; {check.fix}" if check.fix else ""
        yield f"{check.state:<7}  {check.name:<{widest}}  {check.found}{fix}"


def conclusion(checkup: Checkup) -> str:
    """Returns whether programs can be checked, in a sentence."""
    missing = _names(checkup, "missing")
    limited = _names(checkup, "limited")
    if missing:
        return f"Programs cannot be checked here, or only in part: see {missing}."
    if limited:
        return f"Programs can be checked here, with limits: see {limited}."
    return "Programs can be checked here."


def _names(checkup: Checkup, state: str) -> str:
    return join_and(check.name for check in checkup.checks if check.state == state)


class CheckObject(JsonObject):
    check: Annotated[str, Meta(description="The part that was checked.")]
    state: State
    found: Annotated[
        str,
        Meta(
            description="What was found, without paths, the user's name and the name of the "
            "machine."
        ),
    ]
    fix: Annotated[str, Meta(description="The fix, or an empty text.")]


class DoctorDocument(JsonObject):
    schema: Annotated[Literal[1], VERSION]
    versions: Versions
    can_check: Annotated[
        bool, Meta(description="Whether programs can be checked here: no part is missing.")
    ]
    checks: Annotated[list[CheckObject], Meta(min_length=1)]


def render_json(checkup: Checkup) -> str:
    """Returns the JSON document."""
    document = DoctorDocument(
        schema=1,
        versions=Versions.installed(),
        can_check=checkup.can_check,
        checks=[
            CheckObject(check=check.name, state=check.state, found=check.found, fix=check.fix)
            for check in checkup.checks
        ],
    )
    return to_json(document) + "\n"
