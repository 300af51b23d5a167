"""The report that docs/migration.md shows is the one that its command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.commands import Run

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
EXAMPLE = re.compile(r"\$ placement-checks ((?:.*\\\n)*.*)\n((?:(?!```).*\n)*)```")


def test_the_report_of_the_page(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAGE.parents[1])
    (example,) = EXAMPLE.finditer(PAGE.read_text(encoding="utf-8"))

    assert run(*shlex.split(example[1].replace("\\\n", ""))).out == example[2]
