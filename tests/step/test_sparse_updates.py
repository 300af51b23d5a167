"""Updates of looked-up rows: the values and the numbers of unique indices must not be confused."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement_checks import Placement
from placement_checks.step.comparison import State, StepEquality, compare_steps
from placement_checks.verification.placing import requested

UPDATE, SUM = "ResourceSparseApplyAdagrad", "UnsortedSegmentSum"


def _with_output(placement: Placement, kind: str, old: str, new: str) -> Placement:
    """The placement with the other output of ``Unique`` as input of the ops of a type."""
    ops = dict(placement.ops)
    for name, op in placement.ops.items():
        if op.type == kind:
            inputs = [each.replace(old, new) if each.endswith(old) else each for each in op.inputs]
            assert inputs != list(op.inputs)
            ops[name] = op._replace(inputs=inputs)
    return placement.with_fields(ops=ops)


@pytest.mark.parametrize(
    "change", [None, (UPDATE, "/Unique", "/Unique:1"), (SUM, "/Unique:1", "/Unique")]
)
def test_unique_indices(
    change: tuple[str, str, str] | None, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedding with Adagrad is proved, but not if it updates other rows."""
    monkeypatch.chdir(fixtures / "sound" / "graph")
    program = requested("styles_models.py:embeddings", gpus=2)
    towers, one = program.placement, program.single_gpu
    assert isinstance(one, Placement)
    if change is not None:
        towers = _with_output(towers, *change)
    found = compare_steps(towers, one)
    assert isinstance(found, StepEquality)
    states = {answer.state for answer in found.variables.values()}
    assert (states == {State.PROVED}) == (change is None)
