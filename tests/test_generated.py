"""Generated files are up to date."""

from __future__ import annotations

import generate
import pytest


@pytest.mark.parametrize("path", generate.contents())
def test_generated_files_are_up_to_date(path: str) -> None:
    written = (generate.ROOT / path).read_text(encoding="utf-8")

    assert written == generate.contents()[path](), f"{path} is out of date: run {generate.COMMAND}"
