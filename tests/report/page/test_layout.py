from __future__ import annotations

import pytest
from support.graphs import op, placement
from support.pictures import column, data_of, row_of
from support.towers import gradient, host, program

from placement_checks.core.missing import Missing
from placement_checks.report.page.layout import PHASES, Phase

LOG = placement(
    op("tower_0/fc/MatMul", "MatMul", assigned="GPU:0"),
    op("tower_1/fc/MatMul", "MatMul", assigned="GPU:1"),
    op("w", "VariableV2", assigned="CPU:0"),
    op("1/2/Add", "Add", assigned="GPU:0"),
    *(op(f"dense{n}/{a}", a, assigned="GPU:0") for n in ("", "_1") for a in ("Add", "Mul", "Neg")),
    op("truediv/a", "RealDiv", assigned="GPU:0"),
    op("truediv_1/a", "RealDiv", assigned="GPU:0"),
    requested=Missing("a log lacks requested devices"),
    placer="log",
)


@pytest.mark.parametrize(
    ("name", "phase", "row"),
    [
        ("tower_1/x", Phase.FORWARD, "inputs/Placeholder"),
        ("tower_0/b/MatMul", Phase.FORWARD, "b/MatMul"),
        ("tower_1/b/MatMul", Phase.FORWARD, "b/MatMul"),
        (gradient(1, "a"), Phase.BACKWARD, "a/MatMul"),
        ("sum/a", Phase.AVERAGE, "aggregate/AddN"),
        ("update/a", Phase.UPDATE, "update/ResourceApplyGradientDescent"),
        ("tower_0/a/read", Phase.READ, "a/ReadVariableOp"),
        ("a", Phase.VARIABLE, "a"),
        ("step", Phase.VARIABLE, "update"),
    ],
)
def test_an_op_is_in_the_row_of_its_layer(name: str, phase: Phase, row: str) -> None:
    data = data_of(program(variables=["a", "b"]))

    assert (column(data, name, "phase"), row_of(data, name)) == (phase, row)


def test_rows_come_in_the_order_of_the_step() -> None:
    data = data_of(program(variables=["z", "a"]))

    top = [
        name
        for name, parent in zip(data["rows"]["names"], data["rows"]["parents"], strict=True)
        if parent == 0
    ]
    assert top == ["inputs", "z", "a", "aggregate", "update", "other ops", "outside a step"]


def test_ops_that_no_step_runs_are_distinguished() -> None:
    built = host("never", "AddN", "tower_0/loss")

    data = data_of(program(built))

    assert (column(data, "never", "step"), column(data, "update/w", "step")) == (0, 1)


def test_ops_of_a_graph_without_a_loss_are_drawn() -> None:
    data = data_of(placement(op("a", "MatMul", "/gpu:0", "GPU:0")))

    assert (column(data, "a", "phase"), row_of(data, "a")) == (Phase.ANY, "other ops/MatMul")


def test_a_slot_is_in_the_row_of_its_variable() -> None:
    slot = host("w/Momentum", "VarHandleOp")
    update = host("update/w", "ResourceApplyMomentum", "w", "w/Momentum", "rate", "mean/w")

    data = data_of(program(slot, update))

    assert row_of(data, "w/Momentum") == row_of(data, "w") == "w"


@pytest.mark.parametrize(
    ("name", "row", "phase"),
    [
        ("tower_0/fc/MatMul", "tower/fc/MatMul", Phase.ANY),
        ("tower_1/fc/MatMul", "tower/fc/MatMul", Phase.ANY),
        ("w", "in no scope/VariableV2", Phase.VARIABLE),
        ("1/2/Add", "1/2/Add", Phase.ANY),
        ("dense/Add", "dense/Add", Phase.ANY),
        ("dense_1/Add", "dense_1/Add", Phase.ANY),
        ("truediv_1/a", "truediv/RealDiv", Phase.ANY),
    ],
)
def test_ops_of_a_log_are_in_rows_by_their_names(name: str, row: str, phase: Phase) -> None:
    data = data_of(LOG)

    assert (row_of(data, name), column(data, name, "phase")) == (row, phase)
    assert not data["knows_flow"]


def test_every_part_of_a_step_has_a_phase() -> None:
    from typing import get_args

    from placement_checks.analysis.addresses import Part

    assert set(PHASES) == set(get_args(Part))
