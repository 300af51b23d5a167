"""What follows from the rules is written down as they are now."""

from __future__ import annotations

import generate
import pytest


@pytest.mark.parametrize("path", generate.contents())
def test_a_generated_file_is_what_its_sources_give(path: str) -> None:
    written = (generate.ROOT / path).read_text(encoding="utf-8")

    assert written == generate.contents()[path](), f"{path} is out of date: run {generate.COMMAND}"
