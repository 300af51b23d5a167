"""Towers by loss: copies of the model, whichever devices they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import host, mixed_losses, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.placement import StepOps


def losses(graph: Placement) -> list[list[str]]:
    """The losses of each copy of the model."""
    names = analyze(graph).flow.names
    return [[names[op] for op in copy] for copy in analyze(graph).copies.losses]


def towers(graph: Placement) -> list[str]:
    return list(map(str, analyze(graph).towers))


def tower_of(graph: Placement, name: str) -> int | None:
    return analyze(graph).tower_of[analyze(graph).flow.number[name]]


def copies(*devices: Sequence[str], model: Sequence[str] = ("a", "b"), **more: Any) -> Placement:
    """A copy of the model for each list of devices, with a device for each layer."""
    ops = [variable(name) for name in model]
    for i, of_copy in enumerate(devices):
        before = f"x{i}"
        ops.append(host(before, "Placeholder"))
        for name, device in zip(model, of_copy, strict=True):
            ops.append(op(f"{name}{i}", "MatMul", device, device, before, name))
            before = f"{name}{i}"
        ops.append(op(f"loss{i}", "Mean", of_copy[-1], of_copy[-1], before))
    names = tuple(f"loss{i}:0" for i in range(len(devices)))
    return placement(*ops, step=StepOps(objectives=names), **more)


def test_losses_that_share_no_value_belong_to_different_towers() -> None:
    assert losses(program()) == [["tower_0/loss"], ["tower_1/loss"]]


def test_the_loss_decides_before_the_device() -> None:
    """Each tower has a layer on the GPU of the other."""
    graph = copies(["/gpu:0", "/gpu:1"], ["/gpu:1", "/gpu:0"])

    assert len(analyze(graph).towers) == 2
    assert [tower_of(graph, name) for name in ("a0", "b0")] == [tower_of(graph, "loss0")] * 2
    assert [tower_of(graph, name) for name in ("a1", "b1")] == [tower_of(graph, "loss1")] * 2
    assert tower_of(graph, "loss0") != tower_of(graph, "loss1")


def test_a_layer_of_all_towers_on_one_gpu_belongs_to_each() -> None:
    graph = copies(["/gpu:0", "/gpu:2"], ["/gpu:1", "/gpu:2"], machine="gpu*3")

    assert towers(graph) == ["/device:GPU:0", "/device:GPU:1"]
    assert [tower_of(graph, name) for name in ("b0", "b1")] == [0, 1]


def test_copies_on_the_same_gpus_are_micro_batches() -> None:
    graph = copies(*[["/gpu:0", "/gpu:1"]] * 4)

    assert analyze(graph).micro_batches == 4
    assert towers(graph) == ["/device:GPU:0 and /device:GPU:1"]


def test_micro_batches_of_each_tower() -> None:
    graph = copies(["/gpu:0"] * 2, ["/gpu:0"] * 2, ["/gpu:1"] * 2, ["/gpu:1"] * 2)

    assert analyze(graph).micro_batches == 2
    assert towers(graph) == ["/device:GPU:0", "/device:GPU:1"]
    assert [tower_of(graph, f"loss{i}") for i in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize(("machine", "count"), [("gpu*2", 2), ("gpu*1", 1), ("gpu*3", 1)])
def test_copies_on_one_gpu_are_towers_if_there_is_one_for_each(machine: str, count: int) -> None:
    graph = copies(["/gpu:0"] * 2, ["/gpu:0"] * 2, machine=machine)

    assert len(analyze(graph).towers) == count
    if count == 2:
        assert towers(graph) == ["/device:GPU:0 (copy 1)", "/device:GPU:0 (copy 2)"]
        assert [tower_of(graph, f"a{i}") for i in (0, 1)] == [0, 1]


def test_the_number_of_gpus_that_a_program_is_built_for_counts() -> None:
    graph = copies(["/gpu:0"] * 2, ["/gpu:0"] * 2, machine=None)

    assert len(analyze(replace(graph, gpus=2)).towers) == 2


def test_a_copy_on_the_cpu_is_a_tower() -> None:
    graph = copies(["/gpu:0"] * 2, ["/cpu:0"] * 2)

    assert towers(graph) == ["/device:CPU:0", "/device:GPU:0"]
    assert [tower_of(graph, f"a{i}") for i in (0, 1)] == [1, 0]


def test_if_a_loss_contains_another_the_devices_decide() -> None:
    graph = mixed_losses()

    assert analyze(graph).by_loss is None
    assert towers(graph) == ["/device:GPU:0", "/device:GPU:1"]


def test_two_tasks_of_each_tower() -> None:
    graph = program(
        variable("v"),
        *(
            each
            for i in (0, 1)
            for each in (
                on(i, f"tower_{i}/z", "Placeholder"),
                on(i, f"tower_{i}/task", "Relu", f"tower_{i}/vz"),
                on(i, f"tower_{i}/vz", "MatMul", f"tower_{i}/z", "v"),
                on(i, f"tower_{i}/loss_of_task", "Mean", f"tower_{i}/task"),
            )
        ),
        step={
            "objectives": [
                *(f"tower_{i}/loss:0" for i in (0, 1)),
                *(f"tower_{i}/loss_of_task:0" for i in (0, 1)),
            ]
        },
    )

    assert losses(graph) == [
        ["tower_0/loss", "tower_0/loss_of_task"],
        ["tower_1/loss", "tower_1/loss_of_task"],
    ]


def test_a_penalty_alone_belongs_to_no_tower() -> None:
    graph = program(
        host("penalty", "L2Loss", "w"),
        step={"objectives": ["tower_0/loss:0", "tower_1/loss:0", "penalty:0"]},
    )

    assert losses(graph) == [["tower_0/loss"], ["tower_1/loss"]]


def joint(*ops: Op, **step: Any) -> Placement:
    return program(*ops, step={"objectives": ("loss:0",), **step})


def test_a_joint_loss_is_split_where_it_is_summed_up() -> None:
    assert losses(joint()) == [["tower_0/loss"], ["tower_1/loss"]]


def test_an_inner_objective_is_no_loss() -> None:
    """A penalty on the slope of the output of each tower."""
    slopes = [
        on(i, f"tower_{i}/slope", "Mul", f"tower_{i}/x", f"tower_{i}/w/MatMul") for i in (0, 1)
    ]
    sums = [
        on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/w/MatMul", f"tower_{i}/slope") for i in (0, 1)
    ]
    inner = [f"tower_{i}/w/MatMul:0" for i in (0, 1)]
    graph = joint(
        *slopes,
        *sums,
        objectives=(*inner, "loss:0"),
        gradients={name: [f"tower_{i}/slope"] for i, name in enumerate(inner)},
    )

    names = analyze(graph).flow.names
    assert [names[op] for op in analyze(graph).loss_ops] == ["loss"]


def test_each_loss_has_its_own_gradients() -> None:
    graph = program(step={"gradients": {"tower_0/loss:0": ["gradients/tower_0/loss_grad/Mul"]}})

    assert len(analyze(graph).loss_ops) == 2


def test_without_losses_the_devices_decide() -> None:
    graph = program(step={"objectives": (), "losses": ()})

    assert analyze(graph).copies.losses == []
    assert towers(graph) == ["/device:GPU:0", "/device:GPU:1"]


def adversaries(*, mirrored: bool) -> Placement:
    """Towers of two networks; each loss uses both networks, on its own rows."""
    ops = [variable(name) for name in ("g", "d")] if not mirrored else []
    names = []
    for i in (0, 1):
        copy = f"v{i}/" if mirrored else ""
        if mirrored:
            ops += [variable(f"{copy}{name}", at=f"GPU:{i}") for name in ("g", "d")]
        for loss, judged in (("g_loss", "Tanh"), ("d_loss", "Sigmoid")):
            name = f"tower_{i}/{loss}"
            names.append(f"{name}:0")
            ops += [
                on(i, f"{name}/x", "Placeholder"),
                on(i, f"{name}/fake", "MatMul", f"{name}/x", f"{copy}g"),
                on(i, f"{name}/judged", "MatMul", f"{name}/fake", f"{copy}d"),
                on(i, f"{name}/by", judged, f"{name}/judged"),
                on(i, name, "Mean", f"{name}/by"),
            ]
    return placement(*ops, step=StepOps(objectives=names))


@pytest.mark.parametrize("mirrored", [False, True], ids=["shared", "a copy each"])
def test_two_losses_of_a_tower_that_read_the_same_variables(mirrored: bool) -> None:
    graph = adversaries(mirrored=mirrored)

    assert losses(graph) == [
        [f"tower_{i}/{loss}" for loss in ("g_loss", "d_loss")] for i in (0, 1)
    ]
    assert towers(graph) == ["/device:GPU:0", "/device:GPU:1"]


@pytest.mark.parametrize("mirrored", [False, True], ids=["shared", "a copy each"])
def test_two_losses_of_a_tower_that_are_alike(mirrored: bool) -> None:
    """A network that is trained on two batches; the devices decide which losses share a tower."""
    graph = adversaries(mirrored=mirrored)
    same = {
        name: each._replace(type="Tanh") if each.type == "Sigmoid" else each
        for name, each in graph.ops.items()
    }
    graph = replace(graph, ops=same)

    assert towers(graph) == ["/device:GPU:0", "/device:GPU:1"]
    assert [tower_of(graph, f"tower_{i}/{of}") for i in (0, 1) for of in ("g_loss", "d_loss")] == [
        *(0, 0),
        *(1, 1),
    ]
