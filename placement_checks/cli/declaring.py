"""What ``verify --declare`` prints in place of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from placement_checks.core.errors import UsageError
from placement_checks.core.results import Report
from placement_checks.verification.configuration import Settings
from placement_checks.verification.declared_text import declared_text
from placement_checks.verification.declaring import declarations


def write(reports: Sequence[Report], settings: Sequence[Settings], stream: TextIO) -> int:
    """Write the lines for pyproject.toml; the exit status is 1 where something is left to mend.

    Args:
        reports: the verdicts on some programs.
        settings: by which each was judged.
        stream: where to.

    Raises:
        UsageError: no rule is broken.
    """
    programs = [
        (report, own, declarations(report, own.policy))
        for report, own in zip(reports, settings, strict=True)
    ]
    declared = [each for _, _, of_program in programs for each in of_program]
    if not declared:
        raise UsageError(
            "--declare", "no rule is broken, and there is nothing to declare", "leave it out"
        )
    stream.write(declared_text(programs))
    return int(not all(each.fields for each in declared))
