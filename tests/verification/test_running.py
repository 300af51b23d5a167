"""Evidence from running two programs, and the reasons for missing parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import pairs

from placement_checks import verify, with_numbers
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.measurement import Measurement
from placement_checks.core.missing import Missing
from placement_checks.run import runnable
from placement_checks.run.compare import measure
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.sessions import Conditions
from placement_checks.run.timing import trace
from placement_checks.util import progress
from placement_checks.verification.placing import requested


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("module", "name", "missing"),
    [(measure, "measure", "gradients"), (trace, "trace_steps", "towers")],
)
def test_each_part_of_a_run_has_its_own_reason(
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

    monkeypatch.setattr(measure, "measure", failing("no numbers"))
    monkeypatch.setattr(trace, "trace_steps", failing("no trace"))

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


def test_a_graph_without_program_cannot_be_run() -> None:
    with tf.Graph().as_default() as graph:
        pairs.towers()

    evidence = with_numbers(requested(graph), pairs.single, pairs.batch)

    assert isinstance(evidence, Evidence)
    assert evidence.measurement == Missing(
        "the graph cannot be run: it is a graph without its program",
        "name the program that builds it: train.py:build",
    )


def test_a_placement_without_a_program_has_a_reason() -> None:
    log = Evidence(requested(pairs.towers).placement)

    with pytest.raises(InputError, match="cannot be compared with a reference") as refused:
        with_numbers(log, pairs.single, pairs.batch)

    assert "--graph" in refused.value.fix
    assert with_numbers(log, pairs.single, only=["names-portable"]).reference


@pytest.mark.parametrize("has_reference", [True, False])
def test_a_time_limit_is_shown_while_the_programs_run(
    has_reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(measure, "measure", lambda *_: shown.append(progress._current_step()))

    with_numbers(requested(pairs.towers), pairs.single if has_reference else None, pairs.batch)

    assert shown == ["working" if has_reference else "comparing with one GPU, for at most 120 s"]


def test_noise_is_allowed_below_a_strict_tolerance() -> None:
    strict = {"tolerance": 1e-3}
    policies = [{"gradients-equal": strict, "weights-equal": strict}]

    evidence = with_numbers(
        requested(pairs.towers, gpus=4), pairs.single, pairs.batch, policies=policies
    )

    assert evidence.measurement
    assert max(evidence.measurement.trials[0].noise.values()) > 0
    report = verify(evidence, policies, only=["gradients-equal", "weights-equal"])
    assert [verdict.state for verdict in report.verdicts] == ["kept", "kept"]


def on_gpus(
    monkeypatch: pytest.MonkeyPatch, result: Callable[[Measurement], Measurement]
) -> Callable[..., Measurement | Missing]:
    """Compare two programs on two fake GPUs, which yield ``result`` of the measurement on CPUs."""
    real = measure.measure

    def fake(pair: ProgramPair, *rest: Any) -> Measurement:
        if pair.towers.simulated:
            return real(pair, *rest)
        found = real(pair.on_cpus(), *rest)
        return result(replace(found, devices="real"))

    monkeypatch.setattr(measure, "measure", fake)
    monkeypatch.setattr(runnable, "usable_gpus", lambda: 2)

    def compare(towers: Any = pairs.towers, **options: Any) -> Measurement | Missing:
        only = ["gradients-equal", "weights-equal"]
        evidence = with_numbers(requested(towers), pairs.single, pairs.batch, only=only, **options)
        return evidence.measurement

    return compare


def rounded(measured: Measurement) -> Measurement:
    """Gradients with 10 bits of fraction, as in TF32."""
    (trial, *others) = measured.trials
    found = {
        name: value.astype(np.float16).astype(np.float64) for name, value in trial.found.items()
    }
    return replace(measured, trials=[replace(trial, found=found), *others])


def test_equal_numbers_on_gpus_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = on_gpus(monkeypatch, lambda found: found)()

    assert isinstance(measured, Measurement)
    assert (measured.devices, measured.notes) == ("real", [])


def test_a_difference_that_only_gpus_have_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = on_gpus(monkeypatch, rounded)()

    assert isinstance(measured, Measurement)
    assert measured.devices == "simulated"
    assert not measure.differs(measured, Conditions())
    assert "they are equal if CPU devices simulate the GPUs" in measured.notes[-1]


def test_a_difference_on_gpus_counts_if_real_gpus_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = on_gpus(monkeypatch, rounded)(devices="real")

    assert isinstance(measured, Measurement)
    assert measured.devices == "real"
    assert measure.differs(measured, Conditions())


def test_a_mistake_is_found_on_gpus_and_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(num_gpus: int = 2) -> dict[str, Any]:
        return pairs.towers(num_gpus, loss=lambda x, y: 2 * pairs.squared_error(x, y))

    measured = on_gpus(monkeypatch, rounded)(twice)

    assert isinstance(measured, Measurement)
    assert (measured.devices, measured.notes) == ("simulated", [])
    assert measure.differs(measured, Conditions())


def test_numbers_that_gpus_cannot_show_come_from_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Measurement) -> Measurement:
        raise CannotRun("two runs of towers on the same rows give different gradients")

    measured = on_gpus(monkeypatch, fail)()

    assert isinstance(measured, Measurement)
    assert measured.notes[-1] == (
        "on the GPUs of this machine: two runs of towers on the same rows give different gradients"
    )
