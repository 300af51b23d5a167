"""Root causes and the findings that follow from them."""

from __future__ import annotations

from typing import Any

from support.reports import broken, finding

from placement_checks import Verdict
from placement_checks.report.common.findings import Sections

SHARED = broken("variables-shared", finding("w"), finding("v"))


def titles(*verdicts: Verdict) -> tuple[list[str], list[str]]:
    sections = Sections(verdicts)
    return (
        [section.title for section in sections.causes],
        [section.title for section in sections.consequences],
    )


def test_consequences_are_separate() -> None:
    follows = broken("names-portable", *[finding("w", follows="variables-shared")] * 2)

    assert titles(SHARED, follows) == (
        ["variables-shared: 2 findings"],
        ["names-portable: 2 findings follow from variables-shared"],
    )
    sections = Sections([SHARED, follows])
    assert sections.cause_texts == {"names-portable": "follows from variables-shared"}
    assert sections.cause_of("names-portable") == "variables-shared"
    assert sections.cause_of("variables-shared") is None


def test_a_rule_with_root_causes_and_consequences() -> None:
    both = broken("names-portable", finding("u"), finding("w", follows="variables-shared"))

    assert titles(SHARED, both) == (
        ["variables-shared: 2 findings", "names-portable: 1 finding"],
        ["names-portable: 1 finding follows from variables-shared"],
    )
    sections = Sections([SHARED, both])
    assert sections.cause_texts == {
        "names-portable": "1 of 2 findings follow from variables-shared"
    }
    assert sections.cause_of("names-portable") is None


def test_two_causes_have_two_lines() -> None:
    other = broken("one-update", finding("x"))
    both = broken(
        "weights-equal",
        finding("w", follows="variables-shared"),
        finding("x", follows="one-update"),
    )

    causes, consequences = titles(SHARED, other, both)
    assert len(causes) == 2
    assert consequences == [
        "weights-equal: 1 finding follows from variables-shared",
        "weights-equal: 1 finding follows from one-update",
    ]
    assert Sections([SHARED, other, both]).cause_of("weights-equal") is None


def test_doubts_are_neither_causes_nor_consequences() -> None:
    doubt = broken("trainables-trained", finding("u", is_doubt=True), state="doubtful")

    assert titles(SHARED, doubt) == (["variables-shared: 2 findings"], [])
    (section,) = Sections([SHARED, doubt]).doubts
    assert section.title == "trainables-trained: 1 doubt"


def test_what_follows_from_a_rule() -> None:
    follows = broken("names-portable", *[finding("w", follows="variables-shared")] * 2)

    (section,) = Sections([SHARED, follows]).causes
    assert {rule: len(found) for rule, found in section.followers.items()} == {"names-portable": 2}
    assert section.number == 4


def figures(*ratios: float) -> list[dict[str, Any]]:
    return [{"error": 1.0, "state": "differs", "ratio": ratio} for ratio in ratios]


def test_a_picture_belongs_to_its_consequence() -> None:
    follows = broken(
        "weights-equal", finding("w", follows="variables-shared"), figures=figures(1, 2)
    )
    partly = broken(
        "weights-equal",
        *(finding("w", follows=cause) for cause in ("variables-shared", None)),
        figures=figures(1, 2),
    )

    sections = Sections([SHARED, follows])
    assert [bool(section.figures) for section in sections.causes] == [False]
    assert [bool(section.figures) for section in sections.consequences] == [True]
    sections = Sections([SHARED, partly])
    assert [bool(section.figures) for section in sections.causes] == [False, True]
    assert [bool(section.figures) for section in sections.consequences] == [False]


def test_a_picture_without_a_finding_has_a_section() -> None:
    drawn = Verdict("weights-equal", "kept", "executed", figures=figures(1, 2))
    counted = Verdict("transfer-budget", "kept", "assigned", figures=[{"bytes": 1}])

    (section,) = Sections([drawn, counted]).causes
    assert (section.rule, section.findings) == ("weights-equal", [])


def test_one_ratio_of_all_differences_is_in_the_message() -> None:
    alike = broken("weights-equal", finding("w"), figures=figures(2, 2.0001))

    (section,) = Sections([alike]).causes
    assert not section.figures
