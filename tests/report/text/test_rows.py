"""Rows of a label and lines."""

from __future__ import annotations

from placement_checks.report.text.layout import Row, layout_rows


def test_labels_stand_before_their_first_line() -> None:
    rows = [Row("built at", ["a.py:1", "b.py:2"]), Row("by", ["c"]), Row("empty", [])]

    assert list(layout_rows("w", rows)) == [
        "w",
        "",
        "  built at  a.py:1",
        "            b.py:2",
        "  by        c",
    ]


def test_the_last_of_many_lines_is_shown() -> None:
    lines = list(layout_rows("w", [Row("by", [f"op_{number}" for number in range(9)])]))

    assert [line.split(maxsplit=1)[-1] for line in lines[2:]] == [
        *("op_0", "op_1", "op_2"),
        "… 5 more"[2:],
        "op_8",
    ]


def test_as_many_lines_as_fit_are_all_shown() -> None:
    assert len(list(layout_rows("w", [Row("by", ["a", "b", "c", "d", "e"])]))) == 2 + 5


def test_a_long_line_goes_on_below_further_in() -> None:
    first, second = list(layout_rows("w", [Row("by", ["word " * 30])]))[2:]

    assert len(first) <= 120
    assert first.startswith("  by  word")
    assert second.startswith("        word")


def test_a_long_name_loses_its_middle() -> None:
    (line,) = list(layout_rows("w", [Row("by", ["a/" * 100])]))[2:]

    assert len(line) <= 130
    assert "…" in line


def test_without_rows() -> None:
    assert list(layout_rows("w", [])) == ["w", ""]
