"""Steps of strategies whose replicas combine more than their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement_checks import Placement
from placement_checks.core import mistakes
from placement_checks.step.comparison import State, StepEquality, compare_steps
from placement_checks.step.weights import Weights
from placement_checks.verification.placing import requested


@pytest.mark.parametrize(
    ("name", "weight"), [("centered_together", 1.0), ("centered_mean_of_each_replica", 2.0)]
)
def test_statistics_of_all_replicas(
    name: str, weight: float, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replica subtracts a mean over the rows of all, whose gradient a strategy computes."""
    monkeypatch.chdir(fixtures / "defects" / "eager")
    program = requested(f"functions_numeric.py:{name}", gpus=2)
    one = requested("functions_numeric.py:centered_together", gpus=1)
    assert isinstance(one.placement, Placement)
    found = compare_steps(program.placement, one.placement)
    assert isinstance(found, StepEquality)
    output = found.variables["model/output/weights"].state
    assert output is (State.PROVED if weight == 1 else State.DIFFERS)
    hidden = found.weights["model/hidden/weights"]
    assert isinstance(hidden, Weights)
    assert [set(each.ratios.values()) for each in hidden.examples] == [{weight}]


@pytest.mark.parametrize("name", ["decayed_by_replica", "scaled_together"])
def test_sound_steps_are_proved(
    name: str, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas take the mean of their decays, or share a random number that is not for rows."""
    monkeypatch.chdir(fixtures / "sound" / "eager")
    program, one = (requested(f"functions_unusual.py:{name}", gpus=gpus) for gpus in (2, 1))
    assert isinstance(one.placement, Placement)
    found = compare_steps(program.placement, one.placement)
    assert isinstance(found, StepEquality)
    assert found.trained
    assert {found.variables[each].state for each in found.trained} == {State.PROVED}


@pytest.mark.parametrize(
    ("name", "may_be_intended"),
    [("copies_at_their_own_rates", False), ("mirrored_at_scaled_rate", True)],
)
def test_rates_may_differ_from_one_gpu_but_not_between_copies(
    name: str, *, may_be_intended: bool, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fixtures / "defects" / "eager")
    program, one = (requested(f"functions_numeric.py:{name}", gpus=gpus) for gpus in (2, 1))
    assert isinstance(one.placement, Placement)
    found = compare_steps(program.placement, one.placement)
    assert isinstance(found, StepEquality)
    answer = found.variables["model/hidden/weights"]
    assert answer.difference is not None
    excuse = answer.difference.excuse
    assert (excuse is not None and excuse.may_be_intended) is may_be_intended
    assert (answer.state is State.DIFFERS) is not may_be_intended
    expected = mistakes.SETTING if may_be_intended else mistakes.COPIES_UPDATED_APART
    assert answer.difference.mistake is expected
