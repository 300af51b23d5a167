"""The part, tower and layer of each op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import gradient, host, joint, on, program, split, variable

from placement_checks import Op, Placement
from placement_checks.analysis.addresses import addresses
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.placement import StepOps
from placement_checks.core.variables import Variables


def address(graph: Placement, name: str) -> tuple[str, int | None, str | None]:
    """The part, tower and layer of an op."""
    found, names = addresses(graph), list(graph.ops)
    number = names.index(name)
    layer = found.layers[number]
    return found.parts[number], found.towers[number], None if layer is None else names[layer]


def by_op(graph: Placement) -> dict[str, tuple[str, int | None, str | None]]:
    return {name: address(graph, name) for name in graph.ops}


def without(step: StepOps, **fields: Any) -> dict[str, Any]:
    return {**step._asdict(), **fields}


def test_the_parts_of_a_step() -> None:
    graph = program(
        variable("w/m"),
        host("update/w", "ResourceApplyMomentum", "w", "w/m", "rate", "mean/w"),
        host("w/zeros", "Const"),
        host("w/Assign", "AssignVariableOp", "w", "w/zeros"),
        host("shown", "ScalarSummary", "tag", "loss"),
        host("saved", "SaveV2", "w"),
        host("w/ready", "VarIsInitializedOp", "w"),
        host("beside", "NoOp"),
    )

    assert by_op(graph) == {
        "w": ("variable", None, None),
        "w/m": ("variable", None, None),
        "step": ("variable", None, None),
        **{f"tower_{i}/x": ("input", i, None) for i in (0, 1)},
        **{f"tower_{i}/w/read": ("reads", i, "w") for i in (0, 1)},
        **{f"tower_{i}/w/MatMul": ("forward", i, "w") for i in (0, 1)},
        **{f"tower_{i}/loss": ("forward", i, "w") for i in (0, 1)},
        **{f"gradients/tower_{i}/loss_grad/Mul": ("backward", i, "w") for i in (0, 1)},
        **{gradient(i): ("backward", i, "w") for i in (0, 1)},
        "loss": ("shared evaluate", None, "w"),
        "share": ("average", None, "w"),
        "sum/w": ("average", None, "w"),
        "mean/w": ("average", None, "w"),
        "update/w": ("apply", None, "w"),
        "step/one": ("update", None, "step"),
        "step/add": ("apply", None, "step"),
        "train": ("update", None, None),
        "w/zeros": ("init", None, "w"),
        "w/Assign": ("init", None, "w"),
        "shown": ("summaries", None, "w"),
        "saved": ("save", None, None),
        "w/ready": ("reads", None, "w"),
        "beside": ("other", None, None),
    }


@pytest.mark.parametrize("moved", ["tower_1/w/MatMul", gradient(1), "mean/w", "w", "tower_1/loss"])
def test_devices_do_not_count(moved: str) -> None:
    graph = program(variables=["w", "v"])
    elsewhere = replace(
        graph,
        ops={
            name: old._replace(requested=op("a", "NoOp", "/gpu:0").requested, assigned=None)
            if name == moved
            else old
            for name, old in graph.ops.items()
        },
    )

    assert by_op(elsewhere) == by_op(graph)


def test_names_do_not_count() -> None:
    """The program then records backward ops and their forward ops, so scopes are not needed."""
    graph = program(variables=["w", "v"])
    backward = {name for name in graph.ops if name.startswith("gradients/")}
    forward = {name: [name.split("/", 1)[1].rpartition("_grad/")[0]] for name in backward}
    names = {name: f"op{number}" for number, name in enumerate(graph.ops)}

    def renamed(source: str) -> str:
        mark = "^" if source.startswith("^") else ""
        name, colon, output = source.removeprefix("^").partition(":")
        return f"{mark}{names.get(name, name)}{colon}{output}"

    def all_renamed(step: StepOps, backward: set[str]) -> StepOps:
        return step._replace(
            train_op=[*map(renamed, step.train_op)],
            objectives=[*map(renamed, step.objectives)],
            backward={*map(renamed, backward)},
        )

    known = replace(graph, step=graph.step._replace(backward=backward))
    other = replace(
        graph,
        ops={
            names[old.name]: old._replace(
                name=names[old.name],
                inputs=[*map(renamed, old.inputs)],
                colocated=[*map(renamed, forward.get(old.name, ()))],
            )
            for old in graph.ops.values()
        },
        variables=Variables(each._replace(name=names[each.name]) for each in graph.variables),
        step=all_renamed(graph.step, backward),
    )

    assert addresses(other).parts == addresses(known).parts
    assert addresses(other).towers == addresses(known).towers
    assert addresses(other).layers == addresses(known).layers


def test_layers_come_in_the_order_of_data_flow_whatever_is_built_first() -> None:
    graph = program(
        host("v/penalty", "L2Loss", "v"),
        on(0, "v/initial", "Assign", "v", "v/zeros"),
        variables=["v", "w"],
    )
    found, names = addresses(graph), list(graph.ops)

    assert sorted(found.depth, key=lambda op: found.depth[op]) == [
        names.index("v"),
        names.index("w"),
    ]
    assert address(graph, "tower_0/loss")[2] == "w"
    assert address(graph, "tower_0/v/MatMul")[2] == "v"
    assert address(graph, gradient(1, "v")) == ("backward", 1, "v")
    assert address(graph, "mean/v") == ("average", None, "v")


def test_a_lookup_belongs_to_the_layer_of_its_table() -> None:
    graph = program(
        variable("table"),
        on(0, "row", "ResourceGather", "table", "tower_0/x"),
        on(0, "tower_0/w/MatMul", "MatMul", "row", "tower_0/w/read"),
    )

    assert address(graph, "row") == ("forward", 0, "table")
    assert address(graph, "tower_0/w/MatMul") == ("forward", 0, "w")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_tower_for_each_loss(count: int) -> None:
    graph = program(gpus=range(count))

    assert addresses(graph).tower_count == count
    assert [address(graph, f"tower_{i}/w/MatMul")[1] for i in range(count)] == [*range(count)]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_joint_loss_is_split(count: int) -> None:
    graph = joint(gpus=range(count))

    assert addresses(graph).tower_count == count
    assert [address(graph, f"tower_{i}/loss")[:2] for i in range(count)] == [
        ("forward", i) for i in range(count)
    ]
    assert address(graph, "loss")[:2] == ("shared forward", None)


def sums(*pairs: tuple[str, str, str]) -> Iterator[Op]:
    for name, one, other in pairs:
        yield host(name, "AddV2", one, other)


def test_a_loss_summed_up_tower_by_tower() -> None:
    graph = program(
        *sums(("a", "tower_0/loss", "tower_1/loss"), ("b", "a", "tower_2/loss")),
        host("loss", "RealDiv", "b", "share"),
        gpus=[0, 1, 2],
        step={"objectives": ("loss:0",)},
    )

    assert [address(graph, f"tower_{i}/loss")[:2] for i in range(3)] == [
        ("forward", i) for i in range(3)
    ]


def outputs_joined(*changes: Op) -> Placement:
    """Towers with one loss of their concatenated outputs."""
    return program(
        host("joined", "ConcatV2", "tower_0/v/MatMul", "tower_1/v/MatMul"),
        host("error", "SquaredDifference", "joined", "labels"),
        host("loss", "Mean", "error"),
        *changes,
        variables=["w", "v"],
        step={"objectives": ("loss:0",)},
    )


def test_towers_with_concatenated_outputs() -> None:
    graph = outputs_joined()

    assert addresses(graph).tower_count == 2
    assert address(graph, "tower_1/w/MatMul") == ("forward", 1, "w")
    assert address(graph, "error")[:2] == ("shared forward", None)


def test_steps_of_a_sequence_are_no_towers() -> None:
    """They use few of the variables."""
    graph = outputs_joined(
        host("error", "MatMul", "joined", "a"), variable("a"), variable("b"), variable("c"),
        host("deeper", "MatMul", "error", "b"), host("loss", "MatMul", "deeper", "c"),
    )  # fmt: skip

    assert addresses(graph).tower_count == 1


def test_losses_that_share_the_model_belong_to_one_tower() -> None:
    """Such as the losses of a discriminator and its generator. Penalties on weights are shared."""
    own = [on(i, f"tower_{i}/other", "Sum", f"tower_{i}/w/MatMul") for i in (0, 1)]
    penalty = on(0, "penalty", "L2Loss", "w")
    losses = [on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/w/MatMul", "penalty") for i in (0, 1)]
    objectives = [f"tower_{i}/{loss}:0" for i in (0, 1) for loss in ("loss", "other")]
    graph = program(penalty, *own, *losses, step={"objectives": objectives})

    assert addresses(graph).tower_count == 2
    assert address(graph, "tower_1/other") == ("forward", 1, "w")
    assert address(graph, "penalty") == ("shared forward", None, "w")


def test_a_split_model_is_one_tower() -> None:
    graph = split()

    assert addresses(graph).tower_count == 1
    assert address(graph, "second") == ("forward", 0, "b")
    assert find_slots(graph).owner_of == {"a/m": "a", "b/m": "b"}


def test_a_constant_has_the_address_of_its_only_user() -> None:
    graph = program(
        host("axis", "Const"),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/w/MatMul", "axis") for i in (0, 1)),
        host("size", "Const"),
        on(1, "tower_1/x", "Placeholder", "size"),
    )

    assert address(graph, "axis")[:2] == ("shared forward", None)
    assert address(graph, "size") == ("input", 1, None)


def test_without_loss_and_step() -> None:
    graph = placement(variable("w"), host("x", "Placeholder"), host("y", "MatMul", "x", "w"))

    assert addresses(graph).tower_count == 0
    assert by_op(graph) == {
        "w": ("variable", None, None), "x": ("other", None, None), "y": ("other", None, "w"),
    }  # fmt: skip


def test_ops_of_a_loop() -> None:
    """The body of a loop is built after its consumers, and another tower may come before it."""
    graph = program(
        on(1, "enter", "Enter", "tower_1/x"),
        on(1, "merge", "Merge", "enter", "next"),
        on(1, "tower_1/w/MatMul", "MatMul", "merge", "tower_1/w/read"),
        on(1, "next", "NextIteration", "body"),
        on(1, "body", "Tanh", "merge", "shift"),
        on(1, "shift", "Placeholder"),
    )
    body = [graph.ops[name] for name in ("shift", "body", "next")]
    before = [op for op in graph.ops.values() if op not in body]
    graph = replace(graph, ops={op.name: op for op in (*before, *body)})

    assert address(graph, "merge") == ("input", 1, None)
    assert address(graph, "body") == address(graph, "shift") == ("input", 1, None)


def test_the_body_of_a_function_has_the_address_of_its_call() -> None:
    graph = program(
        on(1, "call/Tanh", "Tanh", caller="call"),
        on(1, "call", "PartitionedCall", "tower_1/x"),
        on(1, "tower_1/w/MatMul", "MatMul", "call", "tower_1/w/read"),
    )

    assert address(graph, "call/Tanh") == address(graph, "call") == ("input", 1, None)


def test_one_tower_averages_nothing() -> None:
    assert address(program(gpus=[0]), "mean/w") == ("update", None, "w")


def test_no_op_is_shared_if_no_loss_is_known() -> None:
    graph = program(step={"objectives": (), "losses": ()})

    assert address(graph, gradient(1))[:2] == ("backward", None)


def test_an_op_that_passes_on_a_variable_only_reads_it() -> None:
    graph = program(
        variable("w", "VariableV2"),
        host("w/read", "Identity", "w"),
        host("decayed", "Mul", "tower_0/w/read", "rate"),
    )

    assert address(graph, "w/read") == ("reads", None, "w")
    assert address(graph, "decayed") == ("other", None, "w")


def test_an_average_belongs_to_no_tower() -> None:
    graph = program(host("sum/w", "Mul", gradient(1), "share"))

    assert address(graph, "sum/w") == ("average", None, "w")


def test_a_backward_op_has_the_tower_of_its_forward_op() -> None:
    mixed = on(0, gradient(0), "MatMul", "tower_0/x", "gradients/tower_1/loss_grad/Mul")

    assert address(program(mixed), gradient(0)) == ("backward", 0, "w")


@pytest.mark.parametrize("inputs", [("w", "v"), ("v", "w")])
def test_the_deepest_variable_counts_and_a_penalty_is_not_deep(inputs: tuple[str, str]) -> None:
    both = on(0, "tower_0/loss", "AddN", *(f"tower_0/{name}/MatMul" for name in inputs))
    graph = program(both, variables=["w", "v"])
    first = host("v/penalty", "L2Loss", "v")
    variables = {name: graph.ops[name] for name in ("w", "v")}
    graph = replace(graph, ops={**variables, first.name: first, **graph.ops})

    assert address(graph, "tower_0/loss")[2] == "v"


def branches(*layers: str, outputs: tuple[str, ...]) -> Placement:
    """One loss of several outputs, which share only examples, with a layer for each."""
    ops = [host(f"out{i}", kind, "x", layer) for i, (layer, kind) in enumerate(zip(
        layers, outputs, strict=True))]  # fmt: skip
    return placement(
        *map(variable, dict.fromkeys(layers)),
        host("x", "Placeholder"),
        *ops,
        host("loss", "AddN", *(each.name for each in ops)),
        step=StepOps(objectives=("loss:0",)),
    )


@pytest.mark.parametrize(
    ("graph", "towers"),
    [
        (branches("a", "b", outputs=("MatMul", "MatMul")), 2),  # each with weights of its own
        (branches("wide", "deep", outputs=("MatMul", "Conv2D")), 1),
        (branches("a", "a", "b", outputs=("MatMul", "MatMul", "MatMul")), 1),
        (branches("a", "b", "a", "b", outputs=("MatMul", "Conv2D", "MatMul", "Conv2D")), 2),
    ],
    ids=["own variables", "wide and deep", "uneven", "two outputs each"],
)
def test_groups_that_look_like_towers(graph: Placement, towers: int) -> None:
    assert addresses(graph).tower_count == towers
