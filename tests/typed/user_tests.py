"""A user's tests as mypy reads them; they are never run.

Each line that ignores an error must have it: mypy, strict, reports an ignore that hides none.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import placement_checks
from placement_checks import (
    RULES,
    CaughtLog,
    Device,
    Evidence,
    Finding,
    Machine,
    Place,
    PlacementBaseline,
    PlacementError,
    Program,
    Report,
    Step,
    Timing,
    Verdict,
    assert_averaging_on_host,
    assert_gradients_equal,
    assert_no_fallback,
    assert_placeable,
    assert_rules,
    assert_session_memory,
    assert_towers_overlap,
    assert_training_equal,
    assert_transfer_budget,
    assert_variables_on_host,
    assert_weights_equal,
    catch_log,
    local_cluster,
    read_logs,
    simulated_gpus,
    verify,
    with_numbers,
)


def build_towers(num_gpus: int = 2) -> Step:
    return Step(policy={"variables-on-host": {"device": "/job:ps"}})


def batch(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    return {"x": rng.normal(size=(n, 3))}


def test_where_everything_is(place: Place, placement_baseline: PlacementBaseline) -> None:
    assert place(build_towers) == placement_baseline
    assert place(build_towers).placement == placement_baseline("by name", exact=True)


def test_what_is_placed(place: Place) -> None:
    evidence: Evidence = place(build_towers, gpus=4, soft=True)

    assert_placeable(evidence)
    assert_no_fallback(evidence, allow="MatMul")
    assert_variables_on_host(evidence, "/cpu:0")
    assert_variables_on_host(evidence, device=["/cpu:0", "/gpu:0"], allow=("w", "b"))
    assert_averaging_on_host(evidence, device=None)
    assert_session_memory(evidence, fraction=0.5, others=[{"allow_growth": 1}])
    assert_transfer_budget(evidence, bytes=1000, rows=512)
    assert_rules(evidence, "placeable", "no-fallback")
    assert evidence == evidence.placement
    assert evidence.variables.on("/cpu:0", Device.parse("/job:ps")).elsewhere == {}


def test_what_is_placed_elsewhere(place: Place) -> None:
    place("train.py:build_towers", machine="ps*2; worker*2: gpu*1")
    place(Path("graph.pb"), machine=Machine.parse("gpu*2"))
    place(Program("towers", build_towers), reference="train.py:single", batch=batch)


def test_what_runs() -> None:
    assert_gradients_equal(build_towers, build_towers, batch, gpus=3, scale=2, shares=[3, 1])
    assert_weights_equal("train.py:towers", "train.py:single", steps=4, allow="w")
    assert_towers_overlap(build_towers, build_towers, least=0.8)
    assert_training_equal(build_towers, build_towers, Path("case.npz"), statistics="tower")


def test_without_fixtures() -> None:
    evidence = placement_checks.place(build_towers, gpus=2)
    report: Report = verify(with_numbers(evidence, build_towers, batch))
    verdict: Verdict = report.verdicts[0]
    finding: Finding = verdict.findings[0]
    state: str = verdict.state
    ops = {name: op.type for name, op in evidence.ops.items()}
    named: set[str] = set(RULES) | {finding.object, state, *ops}
    assert RULES["no-fallback"].name in named
    assert placement_checks.__version__.count(".") == 2


def test_logs(placement_log: CaughtLog) -> None:
    with catch_log() as caught, simulated_gpus(2):
        assert_placeable(caught.placement())
    with pytest.raises(PlacementError, match="nothing was logged"):
        assert_placeable(read_logs(["outputlog"]).placement())
    assert placement_log.log().placement().ops


def test_a_cluster() -> None:
    with local_cluster("ps*1; worker*1") as cluster:
        cluster.kill("worker", 0)


def ratio(timing: Timing) -> float:
    return timing.ratio.median if timing.ratio else 0.0


def test_misspelt_names(place: Place) -> None:
    from placement_checks import assert_no_fallbacks  # type: ignore[attr-defined]

    assert_no_fallbacks(place(build_towers))
    placement_checks.verfiy(place(build_towers))  # type: ignore[attr-defined]


def test_misspelt_arguments(place: Place) -> None:
    evidence = place(build_towers, gpu=2)  # type: ignore[call-arg]

    assert_no_fallback(evidence, alow="MatMul")  # type: ignore[call-arg]
    assert_gradients_equal(build_towers, build_towers, scael=2)  # type: ignore[call-arg]
    assert_training_equal(build_towers, build_towers, step=4)  # type: ignore[call-arg]


def test_wrong_types(place: Place) -> None:
    evidence = place(build_towers, gpus="2")  # type: ignore[arg-type]

    assert evidence.variables.on(0)  # type: ignore[arg-type]
    assert_no_fallback("train.py:build_towers")  # type: ignore[arg-type]
    assert_no_fallback(evidence, allow=[1])  # type: ignore[list-item]
    assert_transfer_budget(evidence, bytes="1 MB")  # type: ignore[arg-type]
    assert_weights_equal(build_towers, build_towers, steps=3.5)  # type: ignore[arg-type]
    assert_gradients_equal(build_towers, build_towers, scale="2")  # type: ignore[arg-type]
