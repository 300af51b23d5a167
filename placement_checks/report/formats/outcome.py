"""What a run of `verify` gave, as every format of the report takes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement_checks.report.text.findings import DetailLevel

if TYPE_CHECKING:
    from placement_checks.core.errors import PlacementError
    from placement_checks.core.results import Report, Verdict


def _without_words(_rule: str) -> str:
    return ""


@dataclass(frozen=True)
class Outcome:
    """The verdicts on some programs, and what a reader of them should know.

    Attributes:
        reports: one a program.
        errors: what failed.
        requested: rules that the user names, which must be checked.
        require_all: whether a rule that could not be checked is as bad as a broken one.
        extent: how much the text tells.
        is_quiet: whether the text tells only of programs that fail.
        next_step: what to do next, which is the text's last line; None for none.
        explained: the explanation of a rule, by its name.
    """

    reports: Sequence[Report]
    errors: Sequence[PlacementError] = ()
    requested: Collection[str] = ()
    require_all: bool = False
    extent: DetailLevel = DetailLevel.BRIEF
    is_quiet: bool = False
    next_step: str | None = None
    explained: Callable[[str], str] = _without_words

    def fails(self, report: Report) -> bool:
        """Whether a program is the reason, or one of them, why the exit status is not 0."""
        return report.status(requested=self.requested, require_all=self.require_all) != 0

    def must_be_checked(self, verdict: Verdict) -> bool:
        """Whether it is a failure that a rule was not checked."""
        is_asked_for = self.require_all or verdict.rule in self.requested
        return verdict.state == "not-checked" and is_asked_for
