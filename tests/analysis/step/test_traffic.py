"""The copies of each layer and phase of a step."""

from __future__ import annotations

import pytest
from support.graphs import op
from support.towers import gradient, host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.step.transfers import TransferTotal, by_layer, copies, sent_tensors

SHAPES = {
    **{f"tower_{i}/conv/w/read": (100,) for i in (0, 1)},
    **{gradient(i, "conv/w"): (100,) for i in (0, 1)},
}


def summaries(graph: Placement) -> dict[str, tuple[str, str, int | None]]:
    """The phase, variable and tower of each copy, by tensor and target device."""
    return {
        f"{each.copied.tensor} > {each.copied.to.short}": (each.phase, each.variable, each.tower)
        for each in sent_tensors(graph, copies(graph))
    }


def test_parameters_are_sent_forward_and_gradients_to_the_average() -> None:
    graph = program(variables=["conv/w"], outputs=SHAPES)

    assert summaries(graph) == {
        "tower_0/conv/w/read:0 > /device:GPU:0": ("forward", "conv/w", 0),
        "tower_1/conv/w/read:0 > /device:GPU:1": ("forward", "conv/w", 1),
        f"{gradient(0, 'conv/w')}:0 > /device:CPU:0": ("average", "conv/w", 0),
        f"{gradient(1, 'conv/w')}:0 > /device:CPU:0": ("average", "conv/w", 1),
    }
    (layer,) = by_layer(sent_tensors(graph, copies(graph)))
    assert layer.layer == "conv"
    assert layer.total == TransferTotal(4, 1600, 0)
    assert layer.phases == {
        "forward": TransferTotal(2, 800, 0),
        "average": TransferTotal(2, 800, 0),
    }
    assert layer.largest.tensor == "tower_0/conv/w/read:0"


@pytest.mark.parametrize(
    ("moved", "tensor", "expected"),
    [
        (
            op("tower_0/x", "Placeholder", "/cpu:0", "CPU:0"),
            "tower_0/x:0 > /device:GPU:0",
            ("forward", "w", 0),
        ),
        (
            on(1, "gradients/tower_0/loss_grad/Mul", "Mul", "tower_0/w/MatMul", "tower_0/loss"),
            "tower_0/loss:0 > /device:GPU:1",
            ("backward", "w", 0),
        ),
        (
            on(0, "mean/w", "Mul", "sum/w", "share"),
            "sum/w:0 > /device:GPU:0",
            ("average", "w", None),
        ),
        (
            on(0, "mean/w", "Mul", "sum/w", "share"),
            "mean/w:0 > /device:CPU:0",
            ("update", "w", None),
        ),
        (on(0, "step/one", "Const"), "step/one:0 > /device:CPU:0", ("update", "step", None)),
    ],
)
def test_the_copies_of_an_op_that_moved(
    moved: Op, tensor: str, expected: tuple[str, str, int]
) -> None:
    assert summaries(program(moved))[tensor] == expected


def test_inputs_without_a_layer_have_their_own_row() -> None:
    graph = program(
        host("batch", "Placeholder"),
        *(on(i, f"tower_{i}/x", "Identity", "batch") for i in (0, 1)),
        outputs={"batch": (8,)},
    )

    assert summaries(graph)["batch:0 > /device:GPU:1"] == ("input", "", 1)
    layers = by_layer(sent_tensors(graph, copies(graph)))
    assert [each.layer for each in layers] == ["", "w"]  # w is of unknown size, and so the last
    assert layers[1].total == TransferTotal(4, 0, 4)


def test_layers_are_sorted_by_bytes_and_then_by_copies() -> None:
    names = ["a/w", "b/w", "c/w", "c/b"]
    graph = program(
        variables=names,
        outputs={
            f"tower_0/{name}/read": (size,) for name, size in zip(names, (1, 9, 2, 3), strict=True)
        },
    )

    layers = by_layer(sent_tensors(graph, copies(graph)))

    assert [(each.layer, each.total.bytes, each.total.copies) for each in layers] == [
        ("b", 36, 4),
        ("c", 20, 8),
        ("a", 4, 4),
    ]
    assert layers[1].largest.tensor == "tower_0/c/b/read:0"


def test_a_variable_without_a_scope_is_a_layer() -> None:
    graph = program(variable("w"))

    assert {each.layer for each in sent_tensors(graph, copies(graph))} == {"w"}


def test_a_value_for_an_update_belongs_to_its_variable() -> None:
    takes = [gradient(0, "b"), gradient(1, "b"), "tower_0/a/MatMul"]
    graph = program(host("sum/b", "AddN", *takes), variables=["a", "b"])

    assert summaries(graph)["tower_0/a/MatMul:0 > /device:CPU:0"] == ("average", "b", 0)


def test_layers_of_equal_size_are_sorted_by_copies() -> None:
    graph = program(variables=["a/w", "z/w", "z/b"])  # all of unknown size

    assert [each.layer for each in by_layer(sent_tensors(graph, copies(graph)))] == ["z", "a"]
