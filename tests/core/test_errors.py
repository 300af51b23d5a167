from __future__ import annotations

import pickle

import pytest

from placement_checks.core.errors import CannotRun, InputError, UsageError
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


def test_a_copy_of_another_type_keeps_the_fields_that_it_does_not_change() -> None:
    error = InputError("a.py", "is eager", "trace it", details="a.py:1", is_predicate=True)

    copy = error.copy(UsageError, object="b.py")

    assert (type(copy), str(copy)) == (UsageError, "b.py is eager; trace it")
    assert copy.details == "a.py:1"


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
    assert CannotRun("no rows are known", "pass --batch").missing == Missing(
        "no rows are known", "pass --batch"
    )
