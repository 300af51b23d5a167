"""Generated files are up to date."""

from __future__ import annotations

import pytest
from reference import COMMAND, ROOT, pages


@pytest.mark.parametrize("path", pages())
def test_generated_files_are_up_to_date(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8")

    assert written == pages()[path](), f"{path} is out of date: run {COMMAND}"
