"""Drawn losses: correct towers have no findings, and no mistake counts as equal numbers.

The specification is the program for one GPU on all rows. A program may also be *not checked*; the
test prints how often. PLACEMENT_CHECKS_MODELS is the number of random models, of 24 programs each.
Each change is tested with a few of them; the others, of each loss, are nightly.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.drawn_losses import (
    KINDS,
    LABELS,
    Case,
    builder,
    gradients_of,
    single,
    train_in_session,
    train_under_strategy,
)

from placement_checks import Evidence, place, verify, watch, with_numbers

_RULES = ("gradients-equal", "weights-equal")
_OF_A_CHANGE = 14
_PROGRAMS = 24 * int(os.environ.get("PLACEMENT_CHECKS_MODELS", "2"))


def _case(rng: np.random.Generator, kind: str, way: str, form: str) -> Case:
    """A case whose model, optimizer and inputs are drawn."""

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    sizes_vary = KINDS[kind].any_size and way != LABELS
    any_rows = sizes_vary if form == "builder" else one_of(True, True, False)
    return Case(
        kind,
        way,
        form,
        gpus=one_of(2, 2, 3),
        layers=one_of("plain", "deep", "convolution"),
        activation=one_of("tanh", "relu"),
        optimizer=one_of("SGD", "Momentum", "Adam"),
        any_rows=any_rows,
        shared=one_of(False, True) and form != "strategy",
        grows=sizes_vary and any_rows and form != "builder" and one_of(False, True),
        seed=int(rng.integers(100)),
    )


def _cases() -> Iterator[Case]:
    """One case of each loss, then another one of each, until every way had every form."""
    rng = np.random.default_rng(0)
    by_kind = []
    for kind in rng.permutation(list(KINDS)).tolist():
        loss = KINDS[kind]
        sides = [
            rng.permutation([(way, form) for way in ways for form in loss.forms]).tolist()
            for ways in (loss.right, loss.wrong)
        ]
        if rng.integers(2):
            sides.reverse()
        ways = filter(None, chain.from_iterable(zip_longest(*sides)))
        by_kind.append([_case(rng, kind, way, form) for way, form in ways])
    return filter(None, chain.from_iterable(zip_longest(*by_kind)))


def _evidence(case: Case) -> Evidence:
    """The evidence of a builder and its reference, or of a program and its run on one GPU."""
    if case.form == "builder":
        towers = place(builder(case), gpus=case.gpus)
        return with_numbers(towers, single(case), case.batch, only=_RULES)
    train = train_under_strategy if case.form == "strategy" else train_in_session
    programs = []
    for gpus in (case.gpus, 1):
        with watch(gpus, name=f"train({gpus})", eager=case.form == "strategy") as program:
            train(case, gpus)
        programs.append(program)
    return with_numbers(place(programs[0], gpus=case.gpus), programs[1], only=_RULES)


def _error(case: Case, rows: Mapping[str, Any], towers: int) -> float:
    """The largest difference from the gradients of correct towers, relative to the largest one."""
    right = replace(case, way=KINDS[case.kind].right[0])
    expected, found = gradients_of(right, rows, towers), gradients_of(case, rows, case.gpus)
    largest = max(np.abs(gradient).max() for gradient in expected)
    pairs = zip(expected, found, strict=True)
    return float(max(np.abs(one - other).max() for one, other in pairs) / largest)


def _check_case(case: Case) -> None:
    """Check without this package that the towers are correct, or wrong, in any order of rows."""
    rng = np.random.default_rng(case.seed)
    for _ in range(2):
        rows = case.batch(rng, case.rows(case.gpus))
        if case.is_right and not KINDS[case.kind].statistics:
            assert _error(case, rows, 1) < 1e-4
        if not case.is_right:
            assert _error(case, rows, 1) > 0.01
            # With statistics of its own rows, each tower may differ from one GPU.
            assert _error(case, rows, case.gpus) > 0.01


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Counter[str]]]:
    """Counts the states of `gradients-equal` for each loss, and prints them after the tests."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    yield counts
    states = ("kept", "broken", "not-checked")
    print(f"\n{'loss':40}{'':8}" + "".join(f"{state:>13}" for state in states))
    for name, count in sorted(counts.items()):
        print(f"{name:48}" + "".join(f"{count[state]:13}" for state in states))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.nightly if number >= _OF_A_CHANGE else ())
        for number, case in enumerate(islice(_cases(), _PROGRAMS))
    ],
    ids=str,
)
def test_no_mistake_is_kept_and_no_correct_program_is_broken(
    case: Case,
    outcomes: dict[str, Counter[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a case that differs is saved
    _check_case(case)

    report = verify(_evidence(case), only=_RULES)

    gradients, weights = (verdict.state for verdict in report.verdicts)
    outcomes[f"{case.kind:40}{'right' if case.is_right else 'wrong'}"][gradients] += 1
    if case.is_right:
        assert "broken" not in (gradients, weights), report.verdicts
    else:
        assert gradients != "kept", report.verdicts
        # Adam hides a factor of all gradients, so that the weights may be equal.
        assert gradients == "broken" or weights != "kept", report.verdicts
