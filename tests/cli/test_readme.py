"""The reports that the README shows are those that its commands print."""

from __future__ import annotations

import re
import shlex

import pytest
from commands import Run
from readme import EXAMPLE, README

EXAMPLES = list(EXAMPLE.finditer(README.read_text(encoding="utf-8")))


def test_there_are_some() -> None:
    assert [bool(example["cut"]) for example in EXAMPLES] == [False, True, False]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_report_of_the_readme(
    run: Run, monkeypatch: pytest.MonkeyPatch, example: re.Match[str]
) -> None:
    """After a change of the reports, python -m tests.readme writes them."""
    monkeypatch.chdir(README.parent)

    printed = run(*shlex.split(example["command"])).out

    assert (printed[: len(example["report"])] if example["cut"] else printed) == example["report"]
