"""Mixed losses: losses that contain values of another tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.graphs import op
from support.towers import host, on, program

from placement_checks import Op, Placement
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.mixed_losses import mixed_losses


def mixed(graph: Placement) -> list[tuple[int, int, str]]:
    """The tower, the other tower, and the op of the other tower in the loss."""
    names = analyze(graph).flow.names
    return [(found.tower, found.other, names[found.path[-1]]) for found in mixed_losses(graph).all]


def towers(*ops: Op, count: int = 2, **more: Any) -> Placement:
    return program(*ops, gpus=range(count), **more)


def outputs(count: int) -> list[str]:
    """The outputs of the towers, computed with the shared variable."""
    return [f"tower_{i}/w/MatMul" for i in range(count)]


def losses(count: int, kind: str, *inputs: str) -> list[Op]:
    """The loss of each tower, with its own output and further inputs."""
    return [on(i, f"tower_{i}/loss", kind, outputs(count)[i], *inputs) for i in range(count)]


# Symmetric dependence is no mistake.


@pytest.mark.parametrize("count", [2, 3, 12])
@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(
            lambda count: [
                *(on(i, f"moment_{i}", "Mean", outputs(count)[i]) for i in range(count)),
                host("moments", "AddN", *(f"moment_{i}" for i in range(count))),
                *losses(count, "SquaredDifference", "moments"),
            ],
            id="moments of all towers",
        ),
        pytest.param(
            lambda count: [
                host("everyone", "ConcatV2", *outputs(count), "axis"),
                *(
                    on(i, f"near_{i}", "MatMul", outputs(count)[i], "everyone")
                    for i in range(count)
                ),
                *(on(i, f"tower_{i}/loss", "Mean", f"near_{i}") for i in range(count)),
            ],
            id="a contrastive loss",
        ),
        pytest.param(
            lambda count: [
                host("everyone", "ConcatV2", *outputs(count), "axis"),
                host("scale", "Sqrt", "everyone"),
                *losses(count, "Mul", "scale"),
            ],
            id="a factor of all towers",
        ),
    ],
)
def test_towers_with_mutual_dependence_are_not_mixed(count: int, ops: Any) -> None:
    assert mixed(towers(*ops(count), count=count)) == []


def test_values_that_two_towers_exchange_look_like_shared_moments() -> None:
    """Not found: data flow cannot distinguish the two."""
    graph = towers(
        *(on(i, f"tower_{i}/both", "Add", *outputs(2)) for i in (0, 1)),
        *(on(i, f"tower_{i}/out", "Tanh", f"tower_{i}/both") for i in (0, 1)),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/out") for i in (0, 1)),
    )

    assert mixed(graph) == []


@pytest.mark.parametrize("count", [2, 3, 12])
def test_the_first_op_that_combines_towers_is_found(count: int) -> None:
    graph = towers(
        host("moments", "AddN", *outputs(count)),
        *losses(count, "Maximum", "moments"),
        count=count,
    )

    assert mixed_losses(graph).shared_ops == {
        analyze(graph).flow.number["moments"]: (1 << count) - 1
    }


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(towers(), id="separate towers"),
        pytest.param(
            towers(losses(2, "AddN", outputs(2)[0])[1]), id="one contains the other's by mistake"
        ),
        pytest.param(
            towers(host("all", "AddN", *outputs(2)), *losses(2, "AddN", "all")),
            id="both contain the other's by mistake",
        ),
    ],
)
def test_separate_and_mixed_towers_share_no_op(graph: Placement) -> None:
    assert mixed_losses(graph).shared_ops == {}


def test_in_a_ring_each_loss_is_mixed() -> None:
    graph = towers(
        *(on(i, f"tower_{i}/both", "Add", outputs(3)[i], outputs(3)[i - 1]) for i in range(3)),
        *(on(i, f"tower_{i}/out", "Tanh", f"tower_{i}/both") for i in range(3)),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/out") for i in range(3)),
        count=3,
    )

    assert mixed(graph) == [(i, (i - 1) % 3, outputs(3)[i - 1]) for i in range(3)]


def test_the_activations_of_another_tower() -> None:
    graph = towers(*losses(2, "Tanh")[:1], *losses(2, "SquaredDifference", outputs(2)[0])[1:])

    assert mixed(graph) == [(1, 0, "tower_0/w/MatMul")]


def test_the_activations_of_another_tower_that_has_copies_of_the_variables() -> None:
    other = losses(2, "SquaredDifference", outputs(2)[0])[1]

    assert mixed(program(other, mirrored=True)) == [(1, 0, "tower_0/w/MatMul")]
    assert mixed(program(mirrored=True)) == []


# Added or averaged values are parts of a loss.


def own(count: int) -> list[Op]:
    return [on(i, f"own_{i}", "Mean", outputs(count)[i]) for i in range(count)]


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(
            [host("all", "AddN", "own_0", "own_1"), *losses(2, "AddN", "all")],
            id="every loss is the total of all",
        ),
        pytest.param(
            [
                host("axis", "Const"),
                host("all", "Pack", "own_0", "own_1"),
                host("mean", "Mean", "all", "axis"),
                *losses(2, "AddN", "mean"),
            ],
            id="the mean of the stacked losses",
        ),
        pytest.param(
            [
                host("weighed", "Mul", "own_0", "share"),
                host("all", "AddV2", "weighed", "own_1"),
                host("scaled", "RealDiv", "all", "two"),
                *losses(2, "AddN", "scaled"),
            ],
            id="a weighted mean",
        ),
    ],
)
def test_a_total_of_all_towers_in_each_loss_is_mixed(ops: Sequence[Op]) -> None:
    scalars = {"own_0": (), "own_1": (), "all": (2,), "mean": (), "axis": (1,)}
    graph = towers(*own(2), *ops, outputs=scalars, values={"axis": [0]})

    assert mixed(graph) == [
        (0, 1, "tower_1/w/MatMul"),
        (1, 0, "tower_0/w/MatMul"),
    ]


def test_a_part_that_depends_on_both_towers_is_not_mixed() -> None:
    graph = towers(
        host("both", "Mul", *outputs(2)),
        host("distance", "Sqrt", "both"),
        *losses(2, "AddN", "distance"),
    )

    assert mixed(graph) == []


def test_a_part_that_is_used_twice_counts_once() -> None:
    graph = towers(
        host("sum", "AddN", *outputs(2)), *losses(2, "AddN", "sum", "sum"), host("loss", "NoOp")
    )

    assert [found[:2] for found in mixed(graph)] == [(0, 1), (1, 0)]


# Values computed from weights alone belong to no tower.


def penalties(count: int) -> list[Op]:
    return [on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read") for i in range(count)]


def test_a_penalty_of_one_tower_that_all_towers_add_is_not_mixed() -> None:
    assert mixed(towers(*penalties(1), *own(2), *losses(2, "AddN", "tower_0/l2"))) == []


def test_a_penalty_that_one_tower_adds_for_all_is_not_mixed() -> None:
    graph = towers(*penalties(1), *own(2), losses(2, "AddN", "tower_0/l2")[1])

    assert mixed(graph) == []


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_with_the_penalties_of_earlier_towers_is_mixed(count: int, scaled: bool) -> None:
    """Each tower adds its penalty to a collection, and adds up the collection."""
    names = [f"tower_{i}/l2" for i in range(count)]
    scales = [host(f"scaled_{i}", "Mul", name, "decay") for i, name in enumerate(names)]
    added = [op.name for op in scales] if scaled else names
    graph = towers(
        host("decay", "Const"),
        *penalties(count),
        *(scales if scaled else ()),
        *(
            on(i, f"tower_{i}/loss", "AddN", outputs(count)[i], *added[: i + 1])
            for i in range(count)
        ),
        count=count,
        values={"decay": 0.1},
    )

    assert [found[0] for found in mixed(graph)] == list(range(1, count))
    assert mixed(graph)[0] == (1, 0, "tower_0/l2")


def test_penalties_on_different_weights_are_not_doubled() -> None:
    ops = [on(i, f"{name}/l2", "L2Loss", f"tower_{i}/{name}/read") for i, name in enumerate("ab")]
    whole = [
        on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/b/MatMul", "a/l2", "b/l2") for i in (0, 1)
    ]

    assert mixed(towers(*ops, *whole, variables=["a", "b"])) == []


def test_a_penalty_that_each_tower_makes_and_adds_twice_is_its_own() -> None:
    twice = [on(i, f"tower_{i}/l2_again", "L2Loss", f"tower_{i}/w/read") for i in (0, 1)]
    whole = [
        on(i, f"tower_{i}/loss", "AddN", outputs(2)[i], f"tower_{i}/l2", f"tower_{i}/l2_again")
        for i in (0, 1)
    ]

    assert mixed(towers(*penalties(2), *twice, *whole)) == []


@pytest.mark.parametrize("kind", ["RandomStandardNormal", "Const"])
def test_synthetic_data_are_examples(kind: str) -> None:
    """As in a benchmark."""
    inputs = ["shape"] if kind != "Const" else []
    ops = [op(f"tower_{i}/x", kind, f"/gpu:{i}", f"GPU:{i}", *inputs) for i in (0, 1)]
    whole = on(1, "tower_1/loss", "AddN", "tower_1/hidden", "tower_0/hidden")
    hidden = [on(i, f"tower_{i}/hidden", "Tanh", outputs(2)[i]) for i in (0, 1)]
    graph = towers(host("shape", "Const"), *ops, *hidden, whole)

    assert mixed(graph) == [(1, 0, "tower_0/w/MatMul")]
