from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import pictures

from placement_checks.report.page.write import encode_runs, front_code, index_texts


@given(st.lists(st.integers(-1, 3)))
def test_runs_read_back(values: list[int]) -> None:
    assert pictures.numbers(encode_runs(values)) == values


def test_repeated_values_are_written_once() -> None:
    assert encode_runs([3] * 5 + [4, -1, -1]) == "3*5,4,-1*2"
    assert encode_runs([]) == ""


@given(st.lists(st.text(st.characters(exclude_characters="\n\r")), min_size=1))
def test_names_read_back(names: list[str]) -> None:
    assert pictures.names(front_code(names)) == names


@pytest.mark.parametrize("shared", [0, 1, 35, 36, 1294, 1295, 1296, 3000])
def test_a_packed_name_shares_at_most_1295_characters(shared: int) -> None:
    one, other = "a" * shared + "/x", "a" * shared + "/y"

    coded = front_code([one, other])

    assert pictures.names(coded) == [one, other]
    assert len(coded.split("\n")[1]) == 2 + len(other) - min(shared + 1, 1295)


def test_a_text_is_in_the_table_once() -> None:
    assert index_texts(["b", "a", "b", ""]) == (["b", "a", ""], [0, 1, 0, 2])
