"""The role of each variable, and the verdicts of rules on it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from support.graphs import op
from support.towers import accumulating, gradient, host, on, program, split, variable

from placement_checks import Op, Placement
from placement_checks.analysis.variables.roles import Role, RoleKind, roles
from placement_checks.core.devices import Device
from placement_checks.core.ids import TowerIndex
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.devices.variables_on_host import VariablesOnHost

PAGE = Path(__file__).parents[3] / "docs" / "roles.md"
SAVED = {TRAINABLE: ["w"], GLOBAL: ["w", "step"]}


def of_tower_1() -> list[Op]:
    """A variable that only the second tower uses."""
    return [
        variable("own", at="GPU:1"),
        on(1, "tower_1/own/read", "ReadVariableOp", "own"),
        on(1, "tower_1/scaled", "Mul", "tower_1/x", "tower_1/own/read"),
        on(1, "tower_1/w/MatMul", "MatMul", "tower_1/scaled", "tower_1/w/read"),
    ]


def with_momentum() -> Placement:
    return program(
        variable("v0/w/m", at="GPU:0"),
        on(0, "update/v0/w", "ResourceApplyMomentum", "v0/w", "v0/w/m", "rate", "mean/w"),
        mirrored=True,
    )


def with_average() -> Placement:
    return program(
        variable("average", at="GPU:1"),
        host("apart", "Sub", "average", "w"),
        host("part", "Mul", "apart", "decay"),
        host("decay", "Const"),
        host("move", "AssignSubVariableOp", "average", "part"),
        host("train", "NoOp", "^update/w", "^step/add", "^move"),
    )


def with_statistic() -> Placement:
    return program(
        variable("mean", at="GPU:0"),
        on(0, "rows", "Mean", "tower_0/w/MatMul"),
        on(0, "tower_0/loss", "Sub", "tower_0/w/MatMul", "rows"),
        host("set", "AssignVariableOp", "mean", "rows"),
        host("train", "NoOp", "^update/w", "^step/add", "^set"),
    )


def with_weights(of: str) -> Placement:
    """A scalar for each tower scales its gradient, its loss, or its rows; shares add up to 1."""
    ops = [variable(f"on{i}") for i in (0, 1)]
    ops += [host(f"on{i}/read", "ReadVariableOp", f"on{i}") for i in (0, 1)]
    ops.append(host("total", "AddN", "on0/read", "on1/read"))
    for i in (0, 1):
        ops.append(host(f"share{i}", "RealDiv", f"on{i}/read", "total"))
        if of == "rows":
            ops.append(on(i, f"scaled{i}", "Mul", f"share{i}", f"tower_{i}/x"))
            ops.append(on(i, f"tower_{i}/w/MatMul", "MatMul", f"scaled{i}", f"tower_{i}/w/read"))
        elif of == "losses":
            ops.append(on(i, f"mean{i}", "Mean", f"tower_{i}/w/MatMul"))
            ops.append(on(i, f"tower_{i}/loss", "Mul", f"share{i}", f"mean{i}"))
        else:
            ops.append(host(f"weighed{i}", "Mul", f"share{i}", gradient(i)))
    if of == "gradients":
        ops.append(host("sum/w", "AddN", "weighed0", "weighed1"))
    scalars = ("on0", "on1", "on0/read", "on1/read", "total", "share0", "share1", "mean0", "mean1")
    return program(
        *ops,
        outputs=dict.fromkeys(scalars, ()),
        shapes={"on0": (), "on1": ()},
        collections={TRAINABLE: ["w"], GLOBAL: ["w", "step", "on0", "on1"]},
    )


def experts() -> Placement:
    """Two experts, each on its own GPU, which both towers use."""
    ops = []
    for k in (0, 1):
        ops.append(variable(f"expert{k}", at=f"GPU:{k}"))
        ops.append(on(k, f"expert{k}/read", "ReadVariableOp", f"expert{k}"))
        ops += [
            on(k, f"tower_{i}/expert{k}", "MatMul", f"tower_{i}/x", f"expert{k}/read")
            for i in (0, 1)
        ]
    for i in (0, 1):
        ops.append(on(i, f"tower_{i}/both", "AddN", f"tower_{i}/expert0", f"tower_{i}/expert1"))
        ops.append(on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/both", f"tower_{i}/w/read"))
    return program(*ops)


def of_strategy() -> Placement:
    copies = {"v0/w": Copy("v0/w", 0), "v1/w": Copy("v0/w", 1)}
    gpus = [Device.parse(f"/gpu:{i}") for i in (0, 1)]
    return replace(program(mirrored=True), strategy=Strategy("MirroredStrategy", gpus, copies))


# For each role: a program, a variable with this role, and whether it may be on its GPU.
ROLES: dict[RoleKind, tuple[Placement, str, bool]] = {
    "cached input": (program(*of_tower_1(), collections=SAVED), "own", True),
    "accumulator": (accumulating(), "shown1", True),
    "mirrored": (program(mirrored=True), "v1/w", True),
    "counter": (program(variable("step", at="GPU:0")), "step", False),
    "slot": (with_momentum(), "v0/w/m", True),
    "average": (with_average(), "average", False),
    "statistic": (with_statistic(), "mean", False),
    "weight": (with_weights("gradients"), "on1", False),
    "partition": (
        program(variables=["w/part_0", "w/part_1"]),
        "w/part_0",
        False,
    ),
    "split": (experts(), "expert1", True),
    "own": (program(*of_tower_1()), "own", False),
    "shared": (program(variable("w", at="GPU:0")), "w", False),
    "local": (
        program(variable("total", at="GPU:0"), collections=SAVED, shapes={"total": ()}),
        "total",
        False,
    ),
    "unused": (program(variable("rest", at="GPU:0")), "rest", False),
}


def table(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").partition(heading)[2]
    lines = re.findall(r"^\| ([^|-].*) \|$", text.partition("\n\n##")[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines][1:]


def test_every_role_has_a_program() -> None:
    assert set(ROLES) == set(get_args(RoleKind))


@pytest.mark.parametrize("heading", ["# Roles of variables", "## Verdicts of rules for each role"])
def test_the_page_has_every_role_in_order(heading: str) -> None:
    assert [row[0] for row in table(heading)] == list(get_args(RoleKind))


@pytest.mark.parametrize("kind", ROLES)
def test_the_role_of_a_variable(kind: RoleKind) -> None:
    graph, name, _ = ROLES[kind]

    assert roles(graph)[name].kind == kind
    assert roles(graph)[name].reason


@pytest.mark.parametrize("kind", ROLES)
def test_where_a_variable_of_a_role_may_be(kind: RoleKind) -> None:
    """As in the table of the page: on the host alone, or on a GPU too."""
    graph, name, may_be_on_gpu = ROLES[kind]
    at = {op.name: op for op in graph.ops.values()}[name].assigned
    cell = {row[0]: row[1] for row in table("## Verdicts of rules for each role")}[kind]
    if at is not None and not at.is_gpu:  # the partitions of this program are on the host
        assert cell == "host"
        return

    found = [each.object for each in VariablesOnHost().judge(graph).findings]

    assert (name not in found) is may_be_on_gpu
    if kind not in ("average", "statistic"):  # these go with copies, which these programs lack
        assert ("GPU" in cell) is may_be_on_gpu


def test_copies_of_a_strategy_are_mirrored_whatever_their_updates_take() -> None:
    found = roles(of_strategy())

    assert found["v1/w"] == Role(
        "mirrored",
        "MirroredStrategy keeps it for replica 1",
        "v0/w",
        TowerIndex(1),
        (Device.parse("/gpu:1"),),
    )


def test_the_parts_of_one_model_and_their_slots() -> None:
    found = roles(split())

    assert {name: role.kind for name, role in found.items()} == {
        "a": "split", "b": "split", "a/m": "slot", "b/m": "slot",
    }  # fmt: skip
    assert [found[name].devices[0].short for name in ("b", "b/m")] == ["/device:GPU:1"] * 2


@pytest.mark.parametrize(
    ("dtype", "stays"), [("int32", True), ("int64", False), ("float32", False)]
)
def test_only_a_counter_of_32_bits_stays_on_the_cpu(dtype: str, stays: bool) -> None:
    graph = program()
    variables = [
        each._replace(dtype=dtype, shape=()) if each.name == "step" else each
        for each in graph.variables
    ]
    graph = replace(graph, variables=type(graph.variables)(variables))

    assert roles(graph).stays_on_cpu("step") is stays
    assert not roles(graph).stays_on_cpu("w")
    assert not roles(graph).stays_on_cpu("loss")


def test_a_constant_is_no_counter() -> None:
    graph = program(op("w2", "VarHandleOp", "/cpu:0", "CPU:0"))

    assert roles(graph)["w2"].kind == "unused"


@pytest.mark.parametrize(("resets", "kind"), [([], "slot"), (["reset"], "accumulator")])
def test_sums_of_gradients_that_an_update_takes_are_reset(resets: list[str], kind: str) -> None:
    """The sum of squares of an optimizer is not reset."""
    graph = program(
        variable("sums"),
        host("zeros", "Const"),
        host("sums/init", "AssignVariableOp", "sums", "zeros"),
        host("add", "AssignAddVariableOp", "sums", "sum/w"),
        *(host(name, "AssignVariableOp", "sums", "zeros") for name in resets),
        host("scaled", "Mul", "sum/w", "sums"),
        host("update/w", "AssignSubVariableOp", "w", "scaled"),
        host("train", "NoOp", "^update/w", "^step/add", "^add"),
    )

    assert roles(graph)["sums"].kind == kind


@pytest.mark.parametrize(("of", "is_weight"), [("gradients", 1), ("losses", 1), ("rows", 0)])
def test_only_factors_of_losses_and_gradients_are_weights(of: str, is_weight: bool) -> None:
    found = roles(with_weights(of))

    assert [found[f"on{i}"].kind == "weight" for i in (0, 1)] == [is_weight] * 2


def test_a_layer_of_all_towers_on_the_gpu_of_one_is_shared() -> None:
    """It is not split, because the other towers wait for the GPU."""
    graph = program(
        variable("layer", at="GPU:0"),
        on(0, "layer/read", "ReadVariableOp", "layer"),
        *(on(0, f"tower_{i}/layer", "MatMul", f"tower_{i}/x", "layer/read") for i in (0, 1)),
        *(
            on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/layer", f"tower_{i}/w/read")
            for i in (0, 1)
        ),
    )

    assert roles(graph)["layer"].kind == "shared"
