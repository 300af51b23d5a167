from __future__ import annotations

import pytest

from placement_checks.util.text import counted, listed


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 ops"), (1, "1 op"), (2, "2 ops"), (1000, "1,000 ops")]
)
def test_counted(number: int, text: str) -> None:
    assert counted(number, "op") == text


@pytest.mark.parametrize(
    ("things", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), ((1, 2, 3), "1, 2 and 3")],
)
def test_listed(things: list[object], text: str) -> None:
    assert listed(things) == text
