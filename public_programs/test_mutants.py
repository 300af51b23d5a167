"""Mistakes in public programs are reported; skipped without the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from public_programs.at_hand import extracted
from public_programs.mutants import MUTANTS, Mutant
from public_programs.programs import PROGRAMS
from public_programs.sources import root_of
from public_programs.verifying import verified

_PROGRAMS = {program.name: program for program in PROGRAMS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mistake_in_a_public_program(mutant: Mutant, tmp_path: Path) -> None:
    program = _PROGRAMS[mutant.program]
    start = extracted(program, tmp_path)
    mutant.put_into(root_of(program, tmp_path))

    outcome = verified(program, start)

    assert outcome.has_finding(mutant.rule, mutant.message), str(outcome)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mistake_is_distinguished_from_existing_findings(mutant: Mutant) -> None:
    program = _PROGRAMS[mutant.program]

    assert mutant.message or mutant.rule not in program.broken.split()
    assert program.numbers or mutant.rule not in ("gradients-equal", "weights-equal")


def test_each_of_these_programs_has_two_mistakes_or_more() -> None:
    programs = [mutant.program for mutant in MUTANTS]

    assert len(set(programs)) >= 12
    assert all(programs.count(name) >= 2 for name in programs)


def test_a_mistake_replaces_its_text(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = mean(b)\nc = d\n")

    Mutant("one", "a sum", "train.py", "mean(", "sum(", "gradients-equal").put_into(tmp_path)

    assert (tmp_path / "train.py").read_text() == "a = sum(b)\nc = d\n"


@pytest.mark.parametrize("text", ["a = mean(b)\nc = mean(d)\n", "a = b\n"])
def test_a_mistake_without_a_unique_position_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    mutant = Mutant("one", "a sum", "train.py", "mean(", "sum(", "gradients-equal")

    with pytest.raises(ValueError, match=r"train\.py has [02] times, not once: mean\("):
        mutant.put_into(tmp_path)
