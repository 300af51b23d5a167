from __future__ import annotations

from support.reports import finding

from placement_checks.report.common.findings import Group
from placement_checks.report.text.findings import finding_sentences, one_line


def test_the_sentences_of_a_group() -> None:
    one, two = finding("v", consequence="It is slow."), finding("w")

    assert list(finding_sentences(Group([one, two]))) == [
        "v is [on a GPU]", "likewise 1 more: w", "It is slow.", "fix: pin it"
    ]  # fmt: skip
    assert list(finding_sentences(Group([two]), with_line=True)) == [
        "a.py:1: w is [on a GPU]", "fix: pin it"
    ]  # fmt: skip
    assert list(finding_sentences(Group([finding("w", frames=(), fix="")]), with_line=True)) == [
        "w is [on a GPU]"
    ]


def test_known_behavior_of_a_library_has_a_workaround() -> None:
    of_keras = finding("w", frames=(), known="Keras 3")

    assert list(finding_sentences(Group([of_keras]))) == ["w is [on a GPU]", "workaround: pin it"]


def test_long_values_are_cut() -> None:
    name = "scope/" * 100

    assert len(one_line(f"{name} is here")) < 140
    assert one_line(f"{name} is here").endswith(" is here")
    assert one_line("word " * 200, 50) == f"{'word ' * 9}wor …"
    assert one_line("a\nb\x1b") == r"a\nb\x1b"
