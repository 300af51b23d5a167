"""What is gathered of a program: how often its builders are called, and why parts are missing."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pairs
import pytest
import tensorflow as tf

from placement_checks import place, verify, with_numbers
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.placer.worker.client import PlacerProcess, Request
from placement_checks.run import measuring, tracing
from placement_checks.verification.gathering import requested

Build = Callable[..., dict[str, Any]]


@pytest.fixture
def calls() -> Counter[str]:
    """How often each builder was called, and for how many GPUs."""
    return Counter()


@pytest.fixture
def towers(calls: Counter[str]) -> Build:
    def build(num_gpus: int = 2) -> dict[str, Any]:
        calls[f"towers {num_gpus}"] += 1
        return pairs.towers(num_gpus)

    return build


@pytest.fixture
def single(calls: Counter[str]) -> Build:
    def build() -> dict[str, Any]:
        calls["single"] += 1
        return pairs.single()

    return build


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_towers_are_built_for_two_numbers_of_gpus_and_the_reference_once(
    towers: Build, single: Build, calls: Counter[str]
) -> None:
    evidence = with_numbers(place(towers), single, pairs.batch)

    assert evidence.measurement
    assert evidence.trace
    assert calls == {"towers 2": 1, "towers 1": 1, "single": 1}


def test_it_is_built_for_one_gpu_while_the_placer_works(
    towers: Build, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = PlacerProcess.asked
    built: list[list[str]] = []

    @contextlib.contextmanager
    def noted(process: PlacerProcess, request: Request) -> Iterator[Callable[[], Any]]:
        with asked(process, request) as answer:
            built.append(sorted(calls))

            def noted_answer() -> Any:
                built.append(sorted(calls))
                return answer()

            yield noted_answer

    monkeypatch.setattr(PlacerProcess, "asked", noted)
    place(towers)

    assert built == [["towers 2"], ["towers 1", "towers 2"]]


def test_a_reference_that_is_the_same_function_is_not_built_again(
    towers: Build, calls: Counter[str]
) -> None:
    evidence = with_numbers(place(towers), towers, pairs.batch)

    assert evidence.measurement
    assert calls == {"towers 2": 1, "towers 1": 1}


def test_a_target_that_names_the_same_function_is_not_built_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import pathlib, tensorflow as tf\n"
        "def build(num_gpus=2):\n"
        "    with open('calls', 'a') as calls:\n"
        "        calls.write(f'{num_gpus} ')\n"
        "    tf.compat.v1.placeholder(tf.float32, name='x')\n"
    )

    with_numbers(requested("train.py:build"), "train.py:build")

    assert (tmp_path / "calls").read_text() == "2 1 "


def test_placing_and_running_leave_the_graph_as_it_was_built() -> None:
    evidence = requested(pairs.towers)
    assert evidence.program
    before = evidence.program.graph_def.SerializeToString(deterministic=True)

    placed = place(pairs.towers)
    assert placed.program
    with_numbers(placed, pairs.single, pairs.batch)

    after = placed.program.graph_def.SerializeToString(deterministic=True)
    assert after == before


@pytest.mark.parametrize(
    ("module", "name", "missing"),
    [(measuring, "measure", "gradients"), (tracing, "trace_steps", "towers")],
)
def test_the_reason_for_one_part_of_a_run_is_not_that_for_the_other(
    module: Any, name: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CannotRun(f"no {missing} today")

    monkeypatch.setattr(module, name, fail)

    evidence = with_numbers(requested(pairs.towers), pairs.single, pairs.batch)

    parts = {"gradients": evidence.measurement, "towers": evidence.trace}
    assert parts.pop(missing) == Missing(f"no {missing} today")
    assert all(parts.values())


def test_no_gradients_and_no_trace_each_have_their_own_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(reason: str) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise CannotRun(reason)

        return fail

    monkeypatch.setattr(measuring, "measure", failing("no numbers"))
    monkeypatch.setattr(tracing, "trace_steps", failing("no trace"))

    evidence = with_numbers(requested(pairs.towers), pairs.single, pairs.batch)

    reasons = {verdict.rule: verdict.reason for verdict in verify(evidence).verdicts}
    assert reasons["gradients-equal"] == reasons["weights-equal"] == "no numbers"
    assert reasons["towers-overlap"] == "no trace"


def test_a_saved_case_is_traced_and_measured_on_the_same_batches() -> None:
    def sum_of_losses(num_gpus: int = 2) -> dict[str, Any]:
        return pairs.towers(num_gpus, loss=lambda x, y: num_gpus * pairs.squared_error(x, y))

    first = with_numbers(requested(sum_of_losses), pairs.single, pairs.batch)
    assert first.measurement
    assert first.measurement.saved

    again = with_numbers(requested(sum_of_losses), pairs.single, first.measurement.saved)

    assert again.trace
    assert again.measurement
    ours, theirs = again.measurement.trials[0].found, first.measurement.trials[0].found
    assert ours.keys() == theirs.keys() == {"w", "b"}
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_graph_that_is_there_cannot_be_run() -> None:
    with tf.Graph().as_default() as graph:
        pairs.towers()

    evidence = with_numbers(requested(graph), pairs.single, pairs.batch)

    assert isinstance(evidence, Evidence)
    assert evidence.measurement == Missing(
        "the graph was built elsewhere, and only programs are run"
    )


def test_a_placement_without_a_program_is_not_run_in_silence() -> None:
    log = Evidence(requested(pairs.towers).placement)

    with pytest.raises(InputError, match="cannot be run beside a reference") as refused:
        with_numbers(log, pairs.single, pairs.batch)

    assert "--graph" in refused.value.fix
    assert with_numbers(log, pairs.single, only=["names-portable"]).reference
