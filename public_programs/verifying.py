"""Verifies public programs with the command."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from public_programs.programs import Program

LIMIT = 1200  # seconds, for the slowest of them, on two cores
_RULES_ON_RUNS = ("gradients-equal", "weights-equal", "towers-overlap")


class Outcome(NamedTuple):
    """The output of the command for a program."""

    status: int
    seconds: float  # of CPU time, including TensorFlow's start
    rules: dict[str, str]  # the state of each rule
    findings: dict[str, tuple[str, ...]]  # objects and messages, by rule
    err: str

    def rules_with_state(self, state: str) -> frozenset[str]:
        return frozenset(rule for rule, found in self.rules.items() if found == state)

    def has_finding(self, rule: str, words: str) -> bool:
        """Whether a finding of a rule contains these words."""
        return any(words in finding for finding in self.findings.get(rule, ()))

    def __str__(self) -> str:
        if not self.rules:
            return f"status {self.status}: {_last_line(self.err)}"
        counts = (
            f"{len(self.rules_with_state(state))} {state}" for state in ("kept", "not-checked")
        )
        broken = ", ".join(sorted(self.rules_with_state("broken"))) or "none"
        return f"{', '.join(counts)}, broken: {broken}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def verified(program: Program, folder: Path) -> Outcome:
    """Run the command in the start directory of the program."""
    root = folder
    for _ in Path(program.folder).parts:
        root = root.parent
    before = _seconds()
    done = subprocess.run(
        [Path(sys.executable).with_name("placement-checks"), "verify", *words(program)],
        cwd=folder,
        env=environment(program, root),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    seconds = _seconds() - before
    rules = _rules(done.stdout)
    return Outcome(done.returncode, seconds, _states(rules), _findings(rules), done.stderr)


def environment(program: Program, root: Path) -> dict[str, str]:
    """The environment of this process and the variables of the program.

    Modules of the program come before others.
    """
    own = {name: value.format(root=root) for name, value in program.environment.items()}
    paths = filter(None, (own.get("PYTHONPATH"), os.environ.get("PYTHONPATH")))
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **own, "PYTHONPATH": os.pathsep.join(paths)}


def words(program: Program) -> list[str]:
    """The arguments of `verify`, with the arguments of the program."""
    ours, dashes, theirs = program.typed.partition(" -- ")
    without = () if program.numbers else _RULES_ON_RUNS
    options = ["--format", "json", *(word for rule in without for word in ("--without", rule))]
    return [*shlex.split(ours), *options, *shlex.split(dashes + theirs)]


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rules(out: str) -> list[dict[str, Any]]:
    report: dict[str, Any] = json.loads(out) if out.strip() else {}
    return [rule for program in report.get("programs", []) for rule in program["rules"]]


def _states(rules: list[dict[str, Any]]) -> dict[str, str]:
    return {rule["rule"]: rule["state"] for rule in rules}


def _findings(rules: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    return {
        rule["rule"]: tuple(f"{each['object']}: {each['message']}" for each in rule["findings"])
        for rule in rules
    }
