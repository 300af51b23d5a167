from __future__ import annotations

import pickle

import pytest

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.missing import Missing


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("a.py", "is a directory", is_predicate=True), "a.py is a directory"),
        (InputError("a.py", "its step is eager", "trace it"), "a.py: its step is eager; trace it"),
        (InputError("", "no target is given"), "no target is given"),
    ],
)
def test_a_colon_separates_an_object_from_a_sentence(error: InputError, text: str) -> None:
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (Missing("no step is known"), "no step is known"),
        (Missing("no step is known", "return it"), "no step is known; return it"),
        (Missing("no reference", option="--reference T"), "no reference (--reference T)"),
    ],
)
def test_a_reason_with_its_fix(missing: Missing, text: str) -> None:
    assert str(missing) == text


def test_cannot_run_keeps_its_fix() -> None:
    assert CannotRun("no rows are known", "give --batch").missing == Missing(
        "no rows are known", "give --batch"
    )
