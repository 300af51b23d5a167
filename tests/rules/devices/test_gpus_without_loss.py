"""GPUs that compute no part of a loss although the model is built once for each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.graphs import op
from support.towers import gradient, on, program, variable

from placement_checks import Op, Placement, Verdict
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import TRAINABLE
from placement_checks.rules.devices.no_idle_device import NoIdleDevice, gpus_without_loss

ONE = program(gpus=(0,), collections={TRAINABLE: ["w"]}, machine="gpu*1")


def crowded(*changes: Op, gpus: Sequence[int] = (0, 0), **more: Any) -> Placement:
    """Towers on GPU 0 of two; GPU 1 holds the variable and updates it."""
    held = [
        variable("w", at="GPU:1"),
        on(1, "sum/w", "AddN", *(gradient(i) for i in range(len(gpus)))),
        on(1, "update/w", "ResourceApplyGradientDescent", "w", "rate", "mean/w"),
    ]
    collected = {TRAINABLE: ["w"]}
    return program(*held, *changes, gpus=gpus, machine="gpu*2", collections=collected, **more)


def found(graph: Placement, single: Placement | None = None) -> list[int | None]:
    assert graph.machine is not None
    return [gpu.index for gpu in gpus_without_loss(graph, single, graph.machine.gpus)]


@pytest.mark.parametrize("single", [None, ONE])
def test_a_gpu_that_only_holds_variables_is_found(single: Placement | None) -> None:
    assert found(crowded(), single) == [1]


@pytest.mark.parametrize("single", [None, ONE])
def test_reads_of_variables_count_the_towers_of_one_loss(single: Placement | None) -> None:
    joint = crowded(step={"objectives": ("loss:0",)})

    assert found(joint, single) == ([1] if single else [])


@pytest.mark.parametrize("single", [None, ONE])
def test_kept_by_a_gpu_for_variables_and_fewer_towers(single: Placement | None) -> None:
    assert found(crowded(gpus=(0,)), single) == []


def test_losses_of_the_program_for_one_gpu_are_no_towers() -> None:
    """Two networks that are trained in turns, on one GPU of any number."""
    both = program(gpus=(0, 0), collections={TRAINABLE: ["w"]}, machine="gpu*1")

    assert found(crowded(), both) == []


def test_losses_with_shared_computation_are_no_towers() -> None:
    """One network for two tasks."""
    heads = on(0, "tower_1/w/MatMul", "MatMul", "tower_0/w/MatMul", "tower_1/w/read")

    assert found(crowded(heads)) == []


def test_a_lookup_on_the_gpu_of_a_table_works_for_its_tower() -> None:
    """The lookup is on GPU 1, and works for GPU 0."""
    lookup = on(1, "tower_1/w/read", "GatherV2", "w", "tower_1/x", colocated=("w",))

    assert found(crowded(lookup)) == [1]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul")], id="loss"),
        pytest.param(
            [
                on(1, "own", "MatMul", "tower_1/x", "tower_1/w/read"),
                on(0, "tower_1/loss", "Mean", "own"),
            ],
            id="layer",
        ),
        pytest.param(
            [on(1, "read", "ReadVariableOp", "w"), on(1, "eval", "MatMul", "rows", "read")],
            id="evaluation",
        ),
        pytest.param(
            [
                op("half", "Mul", "", "GPU:1", "tower_1/w/MatMul"),
                on(0, "tower_1/loss", "Mean", "half"),
            ],
            id="an op that requests nothing",
        ),
        pytest.param(
            [op("tower_1/loss", "Mean", "/gpu:2", "GPU:1", "tower_1/w/MatMul")],
            id="an op that requests a GPU which is not there",
        ),
    ],
)
def test_a_gpu_with_a_part_of_a_loss_computes(changes: Sequence[Op]) -> None:
    assert found(crowded(*changes), ONE) == []


def test_a_gpu_with_its_own_model_computes() -> None:
    assert found(program(), ONE) == []


def with_losses(*towers: int, single: Placement = ONE) -> Verdict:
    """Towers on two GPUs; the step minimizes only the losses of some towers."""
    losses = tuple(f"tower_{i}/loss:0" for i in towers)
    graph = program(step={"objectives": losses, "losses": losses}, collections={TRAINABLE: ["w"]})
    return NoIdleDevice().judge(Evidence(graph, single_gpu=single))


def test_a_copy_of_the_model_that_no_loss_depends_on() -> None:
    (finding,) = with_losses(1).findings

    assert finding.object == "/device:GPU:0"
    assert "computes a copy of the model, such as tower_0/w/MatMul" in finding.message
    assert "the step minimizes tower_1/loss" in finding.message


def test_copies_that_losses_depend_on() -> None:
    assert with_losses(0, 1).state == "kept"


def test_a_copy_that_the_program_for_one_gpu_has_too_evaluates() -> None:
    both = program(gpus=(0, 0), collections={TRAINABLE: ["w"]}, machine="gpu*1")

    assert with_losses(1, single=both).state == "kept"
