"""Changes of the training step, compared with a git revision."""

from __future__ import annotations

from placement_checks.core.baseline import Change, Difference
from placement_checks.core.revisions import ChangedVariable, TrainingChange
from placement_checks.verification.training_change import without_proved_objectives

WEIGHTS = Change("objective", "objective of w, v", "mean + 2 L2Loss", "mean + Sum", ("w", "v"))
BIAS = Change("objective", "objective of b", "mean", "2 mean", ("b",))
MOVED = Change("variable", "w", "/cpu:0", "/gpu:0", ("w",))


def test_objectives_with_equal_values_have_not_changed() -> None:
    training = TrainingChange(
        [ChangedVariable(name, "different" if name == "b" else "proved") for name in "wvb"]
    )
    difference = Difference("old", "new", 1, [MOVED, WEIGHTS, BIAS], notes=["note"])

    found = without_proved_objectives(difference, training)

    assert found.moved == [MOVED, BIAS]
    assert found.notes == [
        "note",
        "objective of w, v: mean + 2 L2Loss -> mean + Sum, with equal values",
    ]


def test_an_objective_of_a_variable_that_is_not_proved_has_changed() -> None:
    training = TrainingChange(
        [ChangedVariable("w", "proved"), ChangedVariable("v", "not-checked")]
    )
    difference = Difference("old", "new", 1, [WEIGHTS])

    assert without_proved_objectives(difference, training).moved == [WEIGHTS]
