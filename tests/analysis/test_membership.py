"""The tower of a backward op with a shared forward op, or of a variable."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.towers import gradient, on, program

from placement_checks import Op, Placement
from placement_checks.analysis.towers.analysis import analyze


def penalized(*ops: Op) -> Placement:
    """Towers that both add a penalty of the first tower."""
    return program(
        on(0, "penalty", "L2Loss", "tower_0/w/read"),
        on(0, "tower_0/loss", "AddN", "tower_0/w/MatMul", "penalty"),
        on(1, "tower_1/loss", "AddN", "tower_1/w/MatMul", "penalty"),
        *ops,
    )


def tower_of(graph: Placement, name: str) -> int | None:
    return analyze(graph).tower_of[analyze(graph).flow.number[name]]


@pytest.mark.parametrize("i", [0, 1])
def test_the_gradient_of_a_shared_penalty_belongs_to_the_tower_of_its_loss(
    i: int,
) -> None:
    of_loss = f"gradients/tower_{i}/loss_grad/Mul"
    decay = on(0, "gradients/penalty_grad/Mul", "Mul", of_loss, "w", colocated=["penalty"])

    assert tower_of(penalized(decay), decay.name) == i


def test_the_gradient_of_a_shared_penalty_that_comes_from_both_losses_is_shared() -> None:
    both = [f"gradients/tower_{i}/loss_grad/Mul" for i in (0, 1)]
    decay = on(0, "gradients/penalty_grad/Mul", "AddN", *both, colocated=["penalty"])

    assert tower_of(penalized(decay), decay.name) is None


@pytest.mark.parametrize("i", [0, 1])
def test_inputs_of_the_gradient_of_a_shared_op_work_for_the_same_tower(i: int) -> None:
    """The gradient of a square is multiplied by twice the weights."""
    twice = on(0, "gradients/penalty_grad/Mul", "Mul", "w", "two", colocated=["penalty"])
    of_loss = f"gradients/tower_{i}/loss_grad/Mul"
    decay = on(0, "gradients/penalty_grad/Mul_1", "Mul", of_loss, twice.name)

    assert tower_of(penalized(twice, decay), twice.name) == i


@pytest.mark.parametrize(
    ("takers", "tower"),
    [([1], 1), ([0], 0), ([0, 1], 0), ([], 0)],
    ids=["the second", "the first", "both", "none"],
)
def test_zeros_for_a_variable_work_for_the_tower_that_uses_them(
    takers: Sequence[int], tower: int
) -> None:
    """Zeros for both towers stay on the requested device."""
    zeros = on(0, "gradients/zeros", "Fill", "shape", colocated=["w"])
    graph = program(
        zeros,
        *(
            on(i, gradient(i), "MatMul", f"gradients/tower_{i}/loss_grad/Mul", zeros.name)
            for i in takers
        ),
        step={"backward": {zeros.name, *(gradient(i) for i in (0, 1))}},
    )

    assert tower_of(graph, zeros.name) == tower
