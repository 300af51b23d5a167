"""The catalog of mistakes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

import placement_checks
from placement_checks.core import mistakes
from placement_checks.core.mistakes import CATALOG, WORDS, Mistake, TowerKind

PACKAGE = Path(placement_checks.__file__).parent


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def facts(mistake: Mistake) -> dict[str, Any]:
    """A value for each fact that a text inserts."""
    texts = (mistake.what, mistake.consequence, *map(mistake.fix_for, WORDS))
    return {name: "7" for text in texts for name in fields(text)}


def test_no_two_mistakes_have_one_key() -> None:
    assert max(Counter(mistake.key for mistake in CATALOG).values()) == 1


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("mistake", CATALOG, ids=lambda mistake: mistake.key)
def test_a_mistake_is_stated_for_each_kind_of_towers(mistake: Mistake, kind: TowerKind) -> None:
    others = {name for name in WORDS if name != kind}
    given = {
        name: value for name, value in facts(mistake).items() if name not in WORDS[kind]._fields
    }

    found = mistake.stated(kind, declared="or declare it", **given)

    assert found.mistake == mistake.key
    assert found.fix.endswith("; or declare it")
    for text in (found.what, found.fix, found.consequence):
        assert not fields(text)
    assert not any(re.search(rf"\b{other}s?\b", found.what) for other in others)


def test_a_fact_that_is_not_given_is_an_error() -> None:
    with pytest.raises(KeyError, match="towers"):
        mistakes.SUM.stated("tower", factor="2")


def test_each_mistake_is_found_by_some_code() -> None:
    """A mistake that nothing returns would be documented, but never reported."""
    sources = [
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.name != "mistakes.py"
    ]
    names = {name for name, value in vars(mistakes).items() if isinstance(value, Mistake)}

    unused = {name for name in names if not any(re.search(rf"\b{name}\b", s) for s in sources)}
    assert unused == set()
