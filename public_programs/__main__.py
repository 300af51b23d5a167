"""Verifies public programs, and prints the time and the findings of each.

PLACEMENT_CHECKS_SOURCES=folder python -m public_programs [--mutants] [NAME]...
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from public_programs.mutants import MUTANTS, Mutant
from public_programs.programs import PROGRAMS, Program
from public_programs.sources import SOURCES, extract, repository, root_of, sources
from public_programs.verifying import Outcome, verified


def main(words: list[str]) -> None:
    folder = sources()
    if folder is None:
        raise SystemExit(f"{SOURCES} names no folder with the sources")
    names = [word for word in words if word != "--mutants"]
    for program in PROGRAMS:
        if names and program.name not in names:
            continue
        git = repository(program, folder)
        if git is None:
            print(f"{program.name}: no {program.repository} with its commit in {folder}")
        elif "--mutants" in words:
            for mutant in MUTANTS:
                if mutant.program == program.name:
                    print(
                        _mutant_outcome(program, mutant, _outcome(program, git, mutant)),
                        flush=True,
                    )
        else:
            outcome = _outcome(program, git)
            print(f"{program.name}: {outcome.seconds:.0f} s of CPU; {outcome}", flush=True)


def _outcome(program: Program, git: Path, mutant: Mutant | None = None) -> Outcome:
    with tempfile.TemporaryDirectory() as into:
        start = extract(program, git, Path(into))
        if mutant is not None:
            mutant.put_into(root_of(program, Path(into)))
        return verified(program, start)


def _mutant_outcome(program: Program, mutant: Mutant, outcome: Outcome) -> str:
    """Whether the expected rule reports a mistake, and other rules that the mistake breaks."""
    if not outcome.rules:
        return f"{mutant}: {outcome}"
    found = "found" if outcome.has_finding(mutant.rule, mutant.message) else "MISSED"
    new = sorted(outcome.rules_with_state("broken") - {mutant.rule, *program.broken.split()})
    return f"{mutant}: {found} by {mutant.rule}; also broken: {', '.join(new) or 'none'}"


if __name__ == "__main__":
    main(sys.argv[1:])
