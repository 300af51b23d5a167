"""The example of each rule: one program breaks the rule, and the other one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.ranks import watched_function

from placement_checks import Program, place, verify, watch
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report
from placement_checks.rules import examples
from placement_checks.rules.registry import NAMES, RULES
from placement_checks.verification.running import with_numbers

LONGEST = 16  # lines
WIDEST = 99


@pytest.mark.parametrize("rule", NAMES)
def test_the_broken_program_breaks_the_rule_and_the_fixed_one_breaks_none(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    broken, mended = judged(rule, "-"), judged(rule, "+")

    assert rule in broken_rules(broken)
    assert state(mended, rule) == "kept"
    assert not broken_rules(mended)


def judged(rule: str, sign: str) -> Report:
    """The verdicts on one of the two programs of an example."""
    evidence = gathered(builder(rule, sign), runs=RULES[rule].kind == "executed")
    return verify(evidence)


def gathered(build: Callable[..., Any], *, runs: bool) -> Evidence:
    """The evidence on a builder, which is its own reference for one GPU."""
    if "hvd" in build.__code__.co_varnames:
        return place(watched_function(lambda: build, "build"))
    if is_eager(build):
        with watch(2, eager=True) as code:
            build(2)
        return place(code, gpus=2)
    program = Program.from_function(build)
    evidence = place(program, gpus=2 if program.takes_num_gpus else 1)
    return with_numbers(evidence, program) if runs else evidence


def is_eager(build: Callable[..., Any]) -> bool:
    """Whether it makes a strategy, and trains."""
    return "distribute" in build.__code__.co_names


def builder(rule: str, sign: str) -> Callable[..., Any]:
    """The function of the lines that one of the two programs has."""
    lines = [line[1:] for line in examples.example(rule) if line[0] in (" ", sign)]
    names: dict[str, Any] = {"tf": tf, "tf1": tf.compat.v1}
    exec("\n".join(lines), names)
    found: Callable[..., Any] = names["build"]
    return found


def broken_rules(report: Report) -> list[str]:
    return [verdict.rule for verdict in report.verdicts if verdict.state == "broken"]


def state(report: Report, rule: str) -> str:
    return next(verdict.state for verdict in report.verdicts if verdict.rule == rule)


def test_each_rule_has_an_example() -> None:
    files = Path(examples.__file__).parent.glob("*.diff")

    assert sorted(file.stem for file in files) == sorted(NAMES)


@pytest.mark.parametrize("rule", NAMES)
def test_an_example_fits_on_a_screen_and_differs_in_few_lines(rule: str) -> None:
    lines: Sequence[str] = examples.example(rule)
    changed = [line for line in lines if line[0] != " "]

    assert len(lines) <= LONGEST
    assert max(map(len, lines)) <= WIDEST
    assert {line[0] for line in lines} <= {" ", "-", "+"}
    assert 1 <= len(changed) <= 6
