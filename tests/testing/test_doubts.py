"""The summary of pytest shows doubts, which fail no test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.reports import broken, finding
from support.towers import program

from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report, Verdict
from placement_checks.testing import checking
from placement_checks.testing.verdicts import Summary, _to_property

DOUBTS = broken(
    "some-rule",
    *(finding(name, message=f"{name} keeps its\nvalue", is_doubt=True) for name in "wv"),
    state="doubtful",
)


def summary_of(*verdicts: Verdict) -> list[str]:
    """The lines of the summary of a test with these verdicts."""
    summary = Summary()
    lines: list[str] = []
    properties = [_to_property(Evidence(program()), verdict) for verdict in verdicts]
    ran: Any = SimpleNamespace(when="teardown", nodeid="test", user_properties=properties)
    reporter: Any = SimpleNamespace(section=lambda _: None, line=lines.append)
    summary.pytest_runtest_logreport(ran)
    summary.pytest_terminal_summary(reporter)
    return lines


def test_the_summary_counts_and_shows_doubts_once() -> None:
    counts, *doubts = summary_of(DOUBTS, DOUBTS, broken("wrong-rule", finding("u")))

    assert counts.startswith("rules: 0 kept, 1 broken, 2 doubtful, 0 not checked, on ")
    assert doubts == [r"doubt: some-rule, a.py:1: w keeps its\nvalue (and 1 more)"]


def test_a_doubt_fails_no_assertion() -> None:
    evidence = Evidence(program())

    assert checking.messages(evidence, [DOUBTS]) == []
    assert Report(evidence, [DOUBTS]).status(requested=["some-rule"]) == 0
