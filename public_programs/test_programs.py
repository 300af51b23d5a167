"""Public programs can be analyzed unchanged; skipped without their sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from public_programs.at_hand import extracted
from public_programs.programs import PROGRAMS, Program
from public_programs.verifying import verified


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_public_program(program: Program, tmp_path: Path) -> None:
    start = extracted(program, tmp_path)

    outcome = verified(program, start)

    assert outcome.status == program.status
    assert outcome.rules_with_state("broken") == frozenset(program.broken.split())
    assert program.message in outcome.err
    if program.kept is not None:
        assert (start / program.kept).exists()
