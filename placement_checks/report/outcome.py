"""The result of `verify`, from which every report format is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from placement_checks.report.commands.since import summary as since_summary
from placement_checks.report.text.writer import summary

if TYPE_CHECKING:
    from placement_checks.core.errors import PlacementError
    from placement_checks.core.results import NextStep, Report, Verdict
    from placement_checks.core.revisions import Since


PytestOutcome = Literal["passed", "failed", "skipped"]


class PytestResult(NamedTuple):
    """A pytest test that judged a program."""

    name: str
    outcome: PytestOutcome


@dataclass(frozen=True)
class Outcome:
    """The verdicts on several programs, and how to report them."""

    reports: Sequence[Report]  # the reports of the programs
    errors: Sequence[PlacementError] = ()  # the errors
    tests: Sequence[PytestResult] = ()  # the test of each report; empty outside of pytest
    requested: Collection[str] = ()  # the rules that the user named, which must be checked
    require_all: bool = False  # whether every rule must be checked
    everything: bool = False  # whether the text shows every finding
    is_quiet: bool = False  # whether the text omits programs without failures
    # The next step for the user, the last line of the text; None if there is none.
    next_step: NextStep | None = None
    # Returns the explanation of the rule with a name.
    explained: Callable[[str], str] = lambda _rule: ""
    # The comparison with a git revision; then `reports` and `errors` are its reports and errors.
    since: Since | None = None

    @property
    def summary(self) -> str:
        """The counts, in one line."""
        if self.since is not None:
            return since_summary(self.since)
        return summary(self.reports)

    @property
    def difference_name(self) -> str:
        """The name of everything that moved in a program."""
        return "baseline" if self.since is None else "moved"

    def status(self, report: Report) -> int:
        """The exit status of a program."""
        return report.status(requested=self.requested, require_all=self.require_all)

    def fails(self, report: Report) -> bool:
        return self.status(report) != 0

    def must_be_checked(self, verdict: Verdict) -> bool:
        """Whether a rule was not checked although it must be."""
        is_required = self.require_all or verdict.rule in self.requested
        return verdict.state == "not-checked" and is_required
