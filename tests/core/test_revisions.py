"""Rules that a program breaks since a git revision."""

from __future__ import annotations

from support.reports import broken, finding, report

from placement_checks.core.revisions import ProgramChange

SHARED = broken("variables-shared", finding("w"))
NAMES = broken("names-portable", finding("w", follows="variables-shared"))


def test_a_finding_is_a_root_cause_if_its_cause_is_not_new() -> None:
    change = ProgramChange("train.py", report(SHARED), report(SHARED, NAMES))

    assert change.newly_broken is not None
    (verdict,) = change.newly_broken.verdicts
    assert (verdict.rule, verdict.findings[0].follows) == ("names-portable", None)


def test_a_finding_keeps_its_new_cause() -> None:
    change = ProgramChange("train.py", report(), report(SHARED, NAMES))

    assert change.newly_broken is not None
    assert [each.findings[0].follows for each in change.newly_broken.verdicts] == [
        None,
        "variables-shared",
    ]


def test_a_doubt_is_no_change() -> None:
    doubt = broken("trainables-trained", finding("w", is_doubt=True), state="doubtful")
    change = ProgramChange("train.py", report(), report(doubt))

    assert not change.differs
