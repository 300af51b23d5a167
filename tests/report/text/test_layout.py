from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.report.text.layout import WIDTH, shorten, terminal_width, wrap
from placement_checks.util.text import printable

SENTENCE = " ".join(["word"] * 60)  # of 299 letters


def test_a_short_sentence_is_one_line() -> None:
    assert wrap("a  b", indent=2, hanging=6) == ["  a  b"]


def test_lines_after_the_first_are_indented() -> None:
    first, *rest = wrap(SENTENCE, indent=2, hanging=6)

    assert first == "  " + " ".join(["word"] * 23)
    assert [line[:7] for line in rest] == ["      w"] * 2
    assert " ".join((first, *rest)).split() == ["word"] * 60


@pytest.mark.parametrize(
    ("most", "lines", "end"), [(1, 1, "word …"), (2, 2, "word …"), (3, 3, "word"), (None, 3, "d")]
)
def test_a_long_sentence_ends_with_an_ellipsis(most: int | None, lines: int, end: str) -> None:
    shown = wrap(SENTENCE, indent=2, hanging=6, most=most)
    assert len(shown) == lines
    assert shown[-1].endswith(end)


def test_a_wider_line() -> None:
    assert len(wrap(SENTENCE, hanging=4, width=300)) == 1


@given(
    st.text(st.characters(codec="utf-8"), max_size=400),
    st.integers(0, 8),
    st.sampled_from([0, 4, 39]),
)
def test_wrapping_keeps_the_width_and_all_characters(text: str, indent: int, hanging: int) -> None:
    lines = wrap(text, indent=indent, hanging=hanging)
    assert all(len(printable(line)) <= WIDTH + max(indent, hanging) for line in lines)
    if all(len(word.encode("unicode_escape")) <= WIDTH for word in text.split(" ")):
        joined = " ".join(lines[:1] + [line[hanging:] for line in lines[1:]])
        assert joined == " " * indent + text


def test_the_middle_of_a_long_name_is_left_out() -> None:
    name = "scope/" * 50
    assert shorten(name[:WIDTH]) == name[:WIDTH]
    shown = shorten(name)
    assert len(shown) == WIDTH - 1
    assert shown.startswith("scope/scope/")
    assert shown.endswith("/scope/")
    assert "…" in shown
    assert wrap(name, hanging=4) == [shown]


def test_the_width_counts_visible_characters() -> None:
    r"""An escape takes four letters, \x1b, and cannot be cut apart."""
    shown = shorten("\x1b" * 40)
    assert shown.isprintable()
    assert len(shown) < WIDTH


@pytest.mark.parametrize(("columns", "longest"), [(60, 60), (10, 40), (500, 120)])
def test_lines_fit_into_the_columns(columns: int, longest: int) -> None:
    with terminal_width(columns):
        lines = wrap(SENTENCE, hanging=4)
        assert longest - 5 < max(map(len, lines)) <= longest

    assert max(map(len, wrap(SENTENCE, hanging=4))) > 110


def test_the_cut_of_a_sentence_does_not_depend_on_the_width() -> None:
    (usual,) = wrap(SENTENCE, hanging=4, most=1)
    with terminal_width(60):
        narrow = wrap(SENTENCE, hanging=4, most=1)

    assert len(narrow) == 2
    assert abs(len(usual.split()) - len(" ".join(narrow).split())) <= 2
