from __future__ import annotations

import pytest

from placement_checks.core.errors import InputError
from placement_checks.util.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tower_0/w", "tower_0/w"),
        ("Schlüssel/中/ключ", "Schlüssel/中/ключ"),
        ("w\x1b[31mX", r"w\x1b[31mX"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("a\x00\x07\x7f\x9b31m", r"a\x00\x07\x7f\x9b31m"),
        ("gnp.\u202egpu\u2066\u200f", r"gnp.\u202egpu\u2066\u200f"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("lines\u2028and\x85pages\x0c", r"lines\u2028and\x85pages\x0c"),
        ("half\udc80", r"half\udc80"),
        ("tag\U000e0041", r"tag\U000e0041"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert (
        str(InputError(text, "is bad", "correct it", is_predicate=True))
        == f"{shown} is bad; correct it"
    )
