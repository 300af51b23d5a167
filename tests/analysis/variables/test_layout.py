"""The layout of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.towers import gradient, host, on, program, split, variable

from placement_checks import Device, Op, Placement
from placement_checks.analysis.variables.layout import MirroredVariable, variable_layout
from placement_checks.core.ids import TowerIndex
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.core.strategies import Copy, Strategy

APPLY = "ResourceApplyGradientDescent"


def mirrored(*changes: Op, **more: Any) -> Placement:
    return program(*changes, mirrored=True, **more)


def four(*changes: Op, **more: Any) -> Placement:
    return mirrored(*changes, gpus=range(4), **more)


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_copies_that_take_one_sum_are_mirrored(count: int) -> None:
    graph = mirrored(gpus=range(count), variables=["a", "b"])

    groups = [{TowerIndex(i): f"v{i}/{name}" for i in range(count)} for name in "ab"]
    assert variable_layout(graph).mirrored == [MirroredVariable(group, {}) for group in groups]
    assert str(variable_layout(graph)) == (
        f"mirrored: 2 variables, a copy on each of {count} GPUs, and all copies take the same "
        "gradients"
    )


def test_variables_that_all_towers_read_are_central() -> None:
    graph = program(variables=["a", "b", "c"])

    assert variable_layout(graph).mirrored == []
    assert variable_layout(graph).tower_of == {}
    assert variable_layout(graph).kind("a") == "central"
    assert str(variable_layout(graph)) == "central: 3 variables"


def own_gradient(i: int) -> Op:
    """The copy of one tower takes the gradient of this tower alone."""
    return on(i, f"update/v{i}/w", APPLY, f"v{i}/w", "rate", gradient(i))


@pytest.mark.parametrize("i", range(4))
def test_one_of_four_copies_that_takes_its_own_gradient_diverges(i: int) -> None:
    (group,) = variable_layout(four(own_gradient(i))).mirrored

    assert group.diverging == {i: f"v{i}/w"}
    assert sorted(group.copies) == [other for other in range(4) if other != i]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(mirrored(own_gradient(1)), id="one of two takes its own gradient"),
        pytest.param(mirrored(own_gradient(0), own_gradient(1)), id="both take their own"),
        pytest.param(four(own_gradient(0), own_gradient(1)), id="two of four take their own"),
        pytest.param(
            four(
                host("pair", "AddN", gradient(2), gradient(3)),
                *(on(i, f"update/v{i}/w", APPLY, f"v{i}/w", "rate", "pair") for i in (2, 3)),
                host("sum/w", "AddN", gradient(0), gradient(1)),
            ),
            id="each pair of four takes its own sum",
        ),
        pytest.param(mirrored(host("train", "NoOp", "^step/add")), id="no copy is updated"),
    ],
)
def test_without_a_majority_with_one_sum_copies_belong_to_their_towers(
    graph: Placement,
) -> None:
    assert variable_layout(graph).mirrored == []
    assert variable_layout(graph).kind("v0/w") == variable_layout(graph).kind("v1/w") == "own"
    assert str(variable_layout(graph)).startswith("own: ")
    assert str(variable_layout(graph)).endswith(" variables, each read by one tower alone")


def test_a_copy_that_takes_the_sum_of_another_weight_diverges() -> None:
    """Both sums contain the gradients of the same towers."""
    graph = mirrored(
        on(2, "update/v2/a", APPLY, "v2/a", "rate", "mean/b"),
        gpus=range(3),
        variables=["a", "b"],
    )

    first, second = variable_layout(graph).mirrored
    assert (first.copies, first.diverging) == ({0: "v0/a", 1: "v1/a"}, {2: "v2/a"})
    assert second.diverging == {}
    assert variable_layout(graph).diverging == {"v2/a": first}


@pytest.mark.parametrize(
    ("reads", "is_copy"),
    [
        pytest.param([on(0, "new", "ReadVariableOp", "v0/w", "^update/v0/w")], True, id="new"),
        pytest.param([on(0, "new", "ReadVariableOp", "v0/w")], False, id="either"),
        pytest.param(
            [
                on(0, "old", "ReadVariableOp", "v0/w"),
                on(0, "new", "Identity", "old", "^update/v0/w"),
            ],
            False,
            id="old",
        ),
    ],
)
def test_a_copy_may_be_set_to_the_new_value_of_another_copy(
    reads: Sequence[Op], *, is_copy: bool
) -> None:
    graph = mirrored(*reads, on(1, "update/v1/w", "AssignVariableOp", "v1/w", "new"))

    copies = [group.copies for group in variable_layout(graph).mirrored]
    assert copies == ([{0: "v0/w", 1: "v1/w"}] if is_copy else [])


@pytest.mark.parametrize("collections", [{}, {TRAINABLE: ["v0/w", "v1/w", "v2/w"]}])
def test_a_copy_without_updates_diverges(collections: Mapping[str, Sequence[str]]) -> None:
    train = host("train", "NoOp", "^update/v0/w", "^update/v2/w", "^step/add")

    (group,) = variable_layout(mirrored(train, gpus=range(3), collections=collections)).mirrored

    assert group.copies == {0: "v0/w", 2: "v2/w"}
    assert group.diverging == {1: "v1/w"}


def test_copies_without_the_gradients_of_a_tower_are_mirrored() -> None:
    """They stay equal; every-tower-counts reports the tower whose gradients are ignored."""
    graph = mirrored(host("sum/w", "AddN", gradient(0)))

    assert variable_layout(graph).kind("v0/w") == variable_layout(graph).kind("v1/w") == "mirrored"


def test_variables_of_different_shapes_are_no_copies() -> None:
    graph = mirrored(variables=["a", "b"], shapes={"v0/a": (2,), "v1/a": (3,)})

    assert [group.copies for group in variable_layout(graph).mirrored] == [{0: "v0/b", 1: "v1/b"}]


@pytest.mark.parametrize(
    ("ops", "more"),
    [
        pytest.param(
            [
                *(on(i, f"reduced_{i}", "NcclAllReduce", gradient(i)) for i in (0, 1)),
                *(
                    on(i, f"update/v{i}/w", APPLY, f"v{i}/w", "rate", f"reduced_{i}")
                    for i in (0, 1)
                ),
            ],
            {},
            id="a collective, an op on each GPU",
        ),
        pytest.param(
            [
                *(on(i, f"sum_{i}", "AddN", gradient(0), gradient(1)) for i in (0, 1)),
                *(on(i, f"update/v{i}/w", APPLY, f"v{i}/w", "rate", f"sum_{i}") for i in (0, 1)),
            ],
            {},
            id="each GPU adds up for itself",
        ),
        pytest.param(
            [
                *(on(i, f"half_{i}", "Cast", gradient(i)) for i in (0, 1)),
                on(1, "sum/w", "AddN", "half_0", "half_1"),
                on(1, "mean/w", "Cast", "sum/w"),
            ],
            {},
            id="one GPU adds up, in half precision",
        ),
        pytest.param(
            [
                host("packed", "ConcatV2", "sum/w", "axis"),
                host("parts", "SplitV", "packed", "sizes", "axis"),
                host("mean/w", "Reshape", "parts", "shape"),
            ],
            {},
            id="packed gradients",
        ),
        pytest.param(
            [
                *(on(i, f"decay_{i}", "Mul", f"v{i}/w", "rate") for i in (0, 1)),
                *(on(i, f"decayed_{i}", "AddN", "mean/w", f"decay_{i}") for i in (0, 1)),
                *(
                    on(i, f"update/v{i}/w", APPLY, f"v{i}/w", "rate", f"decayed_{i}")
                    for i in (0, 1)
                ),
            ],
            {},
            id="a decay of each copy",
        ),
        pytest.param(
            [
                host("norm", "L2Loss", "mean/w"),
                host("clipped", "Mul", "mean/w", "norm"),
                *(on(i, f"update/v{i}/w", APPLY, f"v{i}/w", "rate", "clipped") for i in (0, 1)),
            ],
            {"outputs": {"norm": (), "mean/w": (4,)}},
            id="clipped by the norm",
        ),
        pytest.param(
            [
                *(on(i, f"stepped_{i}", "Sub", f"v{i}/w", "mean/w") for i in (0, 1)),
                *(
                    on(i, f"update/v{i}/w", "AssignVariableOp", f"v{i}/w", f"stepped_{i}")
                    for i in (0, 1)
                ),
            ],
            {},
            id="a step written out",
        ),
    ],
)
def test_the_ops_between_the_sum_and_the_copies_do_not_matter(
    ops: Sequence[Op], more: Mapping[str, Any]
) -> None:
    assert [group.copies for group in variable_layout(mirrored(*ops, **more)).mirrored] == [
        {0: "v0/w", 1: "v1/w"}
    ]


# Variables that belong to copies.


def momentum(i: int, slot: str) -> Op:
    return on(i, f"update/v{i}/w", "ResourceApplyMomentum", f"v{i}/w", slot, "rate", "mean/w")


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(
            [
                *(variable(f"slot{i}", at=f"GPU:{i}") for i in (0, 1)),
                *(momentum(i, f"slot{i}") for i in (0, 1)),
            ],
            id="slots",
        ),
        pytest.param(
            [
                *(variable(f"slot{i}", at=f"GPU:{i}") for i in (0, 1)),
                *(on(i, f"slot{i}/read", "ReadVariableOp", f"slot{i}") for i in (0, 1)),
                *(momentum(i, f"slot{i}/read") for i in (0, 1)),
            ],
            id="slots that are read for the update",
        ),
        pytest.param(
            [variable(f"slot{i}", at=f"GPU:{i}", colocated=[f"v{i}/w"]) for i in (0, 1)],
            id="averages colocated with their variable",
        ),
        pytest.param(
            [
                *(variable(f"slot{i}", at=f"GPU:{i}") for i in (0, 1)),
                *(on(i, f"slower{i}", "Add", f"slot{i}", "mean/w") for i in (0, 1)),
                *(on(i, f"keep{i}", "AssignVariableOp", f"slot{i}", f"slower{i}") for i in (0, 1)),
                *(
                    on(i, f"update/v{i}/w", "AssignSubVariableOp", f"v{i}/w", f"slower{i}")
                    for i in (0, 1)
                ),
                host("all", "NoOp", "^train", "^keep0", "^keep1"),
            ],
            id="slots of an optimizer that is composed of simple ops",
        ),
        pytest.param(
            [
                *(variable(f"slot{i}", at=f"GPU:{i}") for i in (0, 1)),
                *(on(i, f"tower_{i}/norm", "Sub", f"tower_{i}/x", f"slot{i}") for i in (0, 1)),
                *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/norm") for i in (0, 1)),
            ],
            id="untrained statistics of the tower",
        ),
    ],
)
def test_variables_of_a_tower_besides_its_copies_have_its_number(ops: Sequence[Op]) -> None:
    collections = {TRAINABLE: ["v0/w", "v1/w"], GLOBAL: ["v0/w", "v1/w", "slot0", "slot1", "step"]}

    found = variable_layout(
        mirrored(*ops, collections=collections, step={"train_op": ("all",)} if _all(ops) else None)
    )

    assert found.tower_of == {"v0/w": 0, "v1/w": 1, "slot0": 0, "slot1": 1}
    assert str(found).startswith("mirrored: 1 variable, ")
    assert "own" not in str(found)


def _all(ops: Sequence[Op]) -> bool:
    return any(op.name == "all" for op in ops)


def test_a_variable_that_one_tower_of_a_mirrored_program_trains_is_a_stray() -> None:
    """If two copies take different sums, neither is known to be right."""
    own = on(1, "update/v1/b", APPLY, "v1/b", "rate", gradient(1, "b"))

    found = variable_layout(mirrored(own, variables=["a", "b"]))

    assert found.strays == {"v0/b": 0, "v1/b": 1}
    assert found.tower_of == {"v0/a": 0, "v1/a": 1, "v0/b": 0, "v1/b": 1}
    assert variable_layout(mirrored(own_gradient(1))).strays == {}


@pytest.mark.parametrize("is_strategys", [True, False])
def test_untrained_copies_of_a_strategy_belong_to_their_towers(is_strategys: bool) -> None:
    """A frozen layer, with variables in the collection of trainable variables."""
    frozen = [variable(f"v{i}/frozen", at=f"GPU:{i}") for i in (0, 1)]
    reads = [
        on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/w/read", f"v{i}/frozen") for i in (0, 1)
    ]
    copies = {f"v{i}/{name}": Copy(f"v0/{name}", i) for i in (0, 1) for name in ("w", "frozen")}
    strategy = Strategy("MirroredStrategy", [Device.parse(f"/gpu:{i}") for i in (0, 1)], copies)
    graph = mirrored(*frozen, *reads, strategy=strategy if is_strategys else None)

    assert str(variable_layout(graph)).startswith("mirrored: 1 variable, ")
    assert ("own: 2 variables" in str(variable_layout(graph))) is not is_strategys
    assert list(variable_layout(graph).strays) == (
        [] if is_strategys else ["v0/frozen", "v1/frozen"]
    )


def test_a_variable_that_several_towers_read_belongs_to_none() -> None:
    graph = mirrored(
        variable("table"),
        *(on(i, f"tower_{i}/row", "ResourceGather", "table", f"tower_{i}/x") for i in (0, 1)),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/row") for i in (0, 1)),
        collections={TRAINABLE: ["v0/w", "v1/w"], GLOBAL: ["v0/w", "v1/w", "table", "step"]},
    )

    assert "table" not in variable_layout(graph).tower_of
    assert variable_layout(graph).kind("table") == "central"
    assert str(variable_layout(graph)) == (
        "central: 1 variable; mirrored: 1 variable, a copy on each of 2 GPUs, and all copies "
        "take the same gradients"
    )


def test_a_variable_that_one_tower_reads_is_its_own_if_none_is_mirrored() -> None:
    graph = program(
        variable("head"),
        on(0, "tower_0/head", "MatMul", "tower_0/w/MatMul", "head"),
        on(0, "tower_0/loss", "Mean", "tower_0/head"),
    )

    assert variable_layout(graph).tower_of == {}
    assert variable_layout(graph).kind("head") == "own"


# Sharded variables, and models that are split.


def test_the_parts_of_a_variable_are_sharded() -> None:
    parts = [variable(f"table/part_{number}") for number in (0, 1)]
    whole = host("table", "ConcatV2", "table/part_0", "table/part_1", "axis")
    graph = program(*parts, whole, host("sum/w", "AddN", gradient(0), gradient(1), "table"))

    assert variable_layout(graph).kind("table/part_0") == "sharded"
    assert variable_layout(graph).kind("w") == "central"


def test_a_single_variable_named_like_a_partition_is_not_sharded() -> None:
    assert variable_layout(program(variables=["table/part_0"])).kind("table/part_0") == "central"


def test_the_parts_of_one_model_are_split() -> None:
    found = variable_layout(split())

    assert found.kind("a") == found.kind("b") == "split"
    assert str(found) == "split: 2 variables, each used only on the GPU that has it"


def gpus_of(graph: Placement) -> dict[str, str]:
    return {name: gpu.short for name, gpu in variable_layout(graph).gpu_of.items()}


def test_a_part_and_its_slots_have_the_gpu_that_reads_it() -> None:
    first, second = "/device:GPU:0", "/device:GPU:1"

    assert gpus_of(split()) == {"a": first, "a/m": first, "b": second, "b/m": second}


def test_a_variable_colocated_with_a_part_is_split_too() -> None:
    average = variable("b/average", at="GPU:1", colocated=["b"])

    assert gpus_of(split(average))["b/average"] == "/device:GPU:1"


def test_a_variable_that_several_gpus_of_one_model_read_is_not_split() -> None:
    """A table for lookups in the first layer, and for the product in the last."""
    tied = [
        host("table", "VarHandleOp"),
        on(0, "x", "ResourceGather", "table", "rows"),
        on(1, "second", "MatMul", "first", "b", "table"),
    ]

    assert sorted(gpus_of(split(*tied))) == ["a", "a/m", "b", "b/m"]


def test_towers_that_use_each_others_results_are_not_a_split_model() -> None:
    """They share most variables."""
    shared = [
        *(variable(name) for name in "cde"),
        on(0, "first", "MatMul", "x", "a", *"cde"),
        on(1, "second", "MatMul", "first", "b", *"cde"),
    ]

    assert variable_layout(split(*shared)).kind("a") == "split"
    assert gpus_of(split(*shared)) == {}


def test_copies_with_one_loss_are_not_a_split_model() -> None:
    """Each has its own variables: their gradients need all outputs, but their outputs do not."""
    columns = split(
        on(1, "second", "MatMul", "x", "b"),
        host("loss", "AddN", "first", "second"),
        on(0, "gradients/first_grad/MatMul", "MatMul", "loss", "a"),
        on(1, "gradients/second_grad/MatMul", "MatMul", "loss", "b"),
    )

    assert variable_layout(columns).kind("a") == "split"
    assert gpus_of(columns) == {}


def test_towers_are_not_a_split_model() -> None:
    assert gpus_of(program()) == gpus_of(program(gpus=[0])) == gpus_of(mirrored()) == {}


def test_cached_examples_have_no_layout() -> None:
    graph = program(variable("images"), collections={TRAINABLE: ["w"], GLOBAL: ["w", "step"]})
    held = on(0, "tower_0/w/MatMul", "MatMul", "images", "tower_0/w/read")

    assert (
        str(variable_layout(replace(graph, ops={**graph.ops, held.name: held})))
        == "central: 1 variable"
    )


def test_a_slot_of_all_copies_belongs_to_the_copy_on_its_device() -> None:
    graph = mirrored(
        variable("slot", at="GPU:1"),
        on(1, "slower", "Add", "slot", "mean/w"),
        on(1, "keep", "AssignVariableOp", "slot", "slower"),
        *(on(i, f"update/v{i}/w", "AssignSubVariableOp", f"v{i}/w", "slower") for i in (0, 1)),
        host("all", "NoOp", "^train", "^keep"),
        step={"train_op": ("all",)},
    )

    assert variable_layout(graph).tower_of == {"v0/w": 0, "v1/w": 1, "slot": 1}
