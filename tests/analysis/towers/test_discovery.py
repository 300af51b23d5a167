"""The ops that compute with each variable, and the GPUs that are towers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.graphs import op, placement

from placement_checks import Device, Op, Placement
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.placement import StepOps
from placement_checks.core.strategies import Strategy


def read_by(graph: Placement, variable: str) -> list[str]:
    flow = analyze(graph).flow
    return [flow.names[number] for number in analyze(graph).reads_by_site.readers[variable]]


@pytest.mark.parametrize(
    "copy",
    [
        "Identity",
        "RefIdentity",
        "ReadVariableOp",
        "Enter",
        "RefEnter",
        "Switch",
        "RefSwitch",
        "RefMerge",
        "StopGradient",
        "Cast",
    ],
)
def test_readers_follow_copies_of_the_value(copy: str) -> None:
    graph = placement(
        op("v", "VarHandleOp"),
        op("copy", copy, "", "", "v"),
        op("again", "Identity", "", "", "copy:1"),
        op("conv", "Conv2D", "", "", "x", "again"),
        op("relu", "Relu", "", "", "conv"),
    )
    assert read_by(graph, "v") == ["conv"]


@pytest.mark.parametrize("mixed", ["Merge", "Exit"])
def test_an_op_that_may_change_the_value_is_a_reader(mixed: str) -> None:
    graph = placement(
        op("v", "VarHandleOp"),
        op("mixed", mixed, "", "", "v", "other"),
        op("conv", "Conv2D", "", "", "x", "mixed"),
    )
    assert read_by(graph, "v") == ["mixed"]


def test_a_reader_behind_identity_n_reads_one_variable() -> None:
    graph = placement(
        op("v", "VarHandleOp"),
        op("both", "IdentityN", "", "", "v", "other"),
        op("conv", "Conv2D", "", "", "x", "both"),
        op("relu", "Relu", "", "", "both:1"),
    )
    assert read_by(graph, "v") == ["conv"]


@pytest.mark.parametrize(
    ("type", "reads"),
    [
        ("MatMul", True),
        ("ResourceGather", True),
        ("ScatterNd", True),
        ("TensorScatterUpdate", True),
        ("TensorListScatter", True),
        ("CollectiveReduceScatterV2", True),
        ("StridedSliceAssign", False),
        ("CountUpTo", False),
        ("AccumulatorApplyGradient", False),
        ("AssignVariableOp", False),
        ("ResourceApplyAdam", False),
        ("ResourceScatterAdd", False),
        ("ScatterNdUpdate", False),
        ("VarIsInitializedOp", False),
        ("IsVariableInitialized", False),
        ("VariableShape", False),
        ("SaveV2", False),
        ("DestroyResourceOp", False),
    ],
)
def test_readers_compute_with_the_value(type: str, reads: bool) -> None:
    graph = placement(op("v", "VarHandleOp"), op("user", type, "", "", "v"))
    assert (read_by(graph, "v") == ["user"]) == reads


def test_readers_in_a_loop_are_found_once() -> None:
    graph = placement(
        op("v", "VariableV2"),
        op("enter", "RefEnter", "", "", "v", "back"),
        op("back", "Identity", "", "", "enter"),
        op("add", "Add", "", "", "enter", "back"),
    )
    assert read_by(graph, "v") == ["add"]


def test_towers_are_the_requested_gpus_in_order() -> None:
    """By the requested device, not the assigned one, with the reader that was built first."""
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
        op("late", "MatMul", "/gpu:10", "CPU:0", "w"),
        op("first", "MatMul", "/gpu:2", "GPU:0", "w"),
        op("second", "MatMul", "/gpu:2", "GPU:0", "w"),
        op("summary", "Mean", "/cpu:0", "CPU:0", "w"),
        op("free", "L2Loss", "", "GPU:0", "w"),
        op("unread", "VarHandleOp", "/gpu:3", "GPU:0"),
    )
    assert [(gpu.device.short, gpu.reads) for gpu in analyze(graph).reads_by_site.site_reads] == [
        ("/device:GPU:2", {"w": "first"}),
        ("/device:GPU:10", {"w": "late"}),
    ]


def test_towers_of_a_cluster_are_ordered_by_job_and_task() -> None:
    names = ["/job:worker/task:1/gpu:0", "/job:worker/task:0/gpu:1", "/job:chief/task:2/gpu:0"]
    graph = placement(
        op("w", "VarHandleOp"), *(op(name, "MatMul", name, "", "w") for name in names)
    )
    assert [gpu.reads["w"] for gpu in analyze(graph).reads_by_site.site_reads] == names[::-1]


def looked_up(*more: Op, trained: bool = True) -> Placement:
    """Two tables with lookups on the host, for the losses of two GPUs."""
    ops = [op("ids", "Placeholder"), op("first", "VarHandleOp", "/cpu:0")]
    ops.append(op("second", "VarHandleOp", "/cpu:0"))
    for i in (0, 1):
        gpu = f"/gpu:{i}"
        ops += [
            op(f"row_{i}", "ResourceGather", "/cpu:0", "", "first", "ids"),
            op(f"other_{i}", "ResourceGather", "/cpu:0", "", "second", "ids"),
            op(f"both_{i}", "ConcatV2", "/cpu:0", "", f"row_{i}", f"other_{i}"),
            op(f"scaled_{i}", "Mul", "/cpu:0", "", f"other_{i}", "factor"),
            op(f"own_{i}", "Tanh", gpu, "", f"scaled_{i}"),
            op(f"loss_{i}", "Mean", gpu, "", f"both_{i}", f"own_{i}"),
        ]
        if trained:
            ops.append(op(f"gradients/loss_{i}_grad/Mul", "Mul", gpu, "", f"both_{i}"))
    objectives = ("loss_0:0", "loss_1:0", "gone")
    return placement(*ops, *more, step=StepOps(objectives=objectives))


def test_gpus_read_the_tables_that_the_host_looks_up_for_them() -> None:
    """They read every table of the result; only the first forward ops count."""
    graph = looked_up()

    assert read_by(graph, "first") == ["row_0", "row_1", "loss_0", "loss_1"]
    assert read_by(graph, "second") == [
        "other_0",
        "other_1",
        "own_0",
        "loss_0",
        "own_1",
        "loss_1",
    ]
    assert [gpu.reads for gpu in analyze(graph).reads_by_site.site_reads] == [
        {"first": "loss_0", "second": "own_0"},
        {"first": "loss_1", "second": "own_1"},
    ]


def test_without_a_known_loss_every_lookup_counts() -> None:
    graph = replace(looked_up(trained=False), step=StepOps())

    assert [gpu.reads for gpu in analyze(graph).reads_by_site.site_reads] == [
        {"first": "loss_0", "second": "own_0"},
        {"first": "loss_1", "second": "own_1"},
    ]
    assert analyze(graph).variables_read == {"first", "second"}


def test_a_gpu_that_also_uses_a_lookup_reads_the_table_once() -> None:
    graph = looked_up(op("penalty", "Mul", "/gpu:0", "", "first", "row_0"))

    assert read_by(graph, "first").count("penalty") == 1


@pytest.mark.parametrize("trained", [True, False])
def test_a_lookup_outside_the_model_makes_no_tower(trained: bool) -> None:
    """A third GPU that uses a result of the host only for a summary."""
    graph = looked_up(
        op("norm", "L2Loss", "/cpu:0", "", "first"),
        op("shown", "Sqrt", "/gpu:2", "", "norm"),
        trained=trained,
    )

    assert len(analyze(graph).reads_by_site.site_reads) == 2


def test_the_next_gpu_does_not_read_the_variables_behind_its_inputs() -> None:
    """Two parts of one model: each reads its own variables."""
    graph = placement(
        op("w", "VarHandleOp", "/gpu:0"),
        op("v", "VarHandleOp", "/gpu:1"),
        op("first", "MatMul", "/gpu:0", "", "x", "w"),
        op("second", "MatMul", "/gpu:1", "", "first", "v"),
    )

    assert [gpu.reads for gpu in analyze(graph).reads_by_site.site_reads] == [
        {"w": "first"},
        {"v": "second"},
    ]


def test_gpus_of_one_model_are_grouped() -> None:
    graph = placement(
        *(op(name, "VarHandleOp", "/cpu:0") for name in "uvw"),
        op("first", "MatMul", "/gpu:0", "", "x", "u"),
        op("second", "MatMul", "/gpu:1", "", "first", "v"),
        op("third", "MatMul", "/gpu:2", "", "x", "w"),
    )
    parts = analyze(graph).reads_by_site

    first, second, third = parts.site_indices
    assert parts.group_by_tower([first, second, third]) == [[0, 1], [2]]
    assert parts.group_by_tower([second, third]) == [[1], [2]]
    assert parts.group_by_tower([first, third]) == [[0], [2]]


@pytest.mark.parametrize(("strategy", "towers"), [(None, 1), ("MirroredStrategy", 2)])
def test_replicas_that_use_each_others_results_are_towers(
    strategy: str | None, towers: int
) -> None:
    """They normalize over the rows of all replicas: each uses a sum over both."""
    reads = [
        each
        for i in (0, 1)
        for each in (
            op(f"v{i}", "VarHandleOp", f"/gpu:{i}"),
            op(f"rows/{i}", "MatMul", f"/gpu:{i}", "", "x", f"v{i}"),
        )
    ]
    sums = [
        each
        for i in (0, 1)
        for each in (
            op(f"sum/{i}", "CollectiveReduceV2", f"/gpu:{i}", "", "rows/0", "rows/1"),
            op(f"g{i}", "VarHandleOp", f"/gpu:{i}"),
            op(f"out/{i}", "MatMul", f"/gpu:{i}", "", f"sum/{i}", f"g{i}"),
        )
    ]
    gpus = [Device.parse(f"/gpu:{i}") for i in (0, 1)]
    known = None if strategy is None else Strategy(strategy, gpus)
    graph = placement(*reads, *sums, strategy=known)

    assert len(analyze(graph).towers) == towers


def test_the_body_of_a_function_reads_the_inputs_of_the_call() -> None:
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0"),
        op("call", "PartitionedCall", "/gpu:0", "", "w"),
        op("call/MatMul", "MatMul", "/gpu:0", "", "w", caller="call"),
    )

    assert read_by(graph, "w") == ["call/MatMul"]


def test_a_variable_that_only_an_update_uses_is_not_read() -> None:
    """A velocity: the step decays it, and no tower reads it."""
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0"),
        op("velocity", "VarHandleOp", "/cpu:0"),
        op("loss", "MatMul", "/gpu:0", "", "x", "w"),
        op("gradients/loss_grad/MatMul", "MatMul", "/gpu:0", "", "loss"),
        op("slower", "Mul", "/gpu:0", "", "velocity", "momentum"),
        op("new", "AddV2", "/gpu:0", "", "slower", "gradients/loss_grad/MatMul"),
        op("update", "AssignSubVariableOp", "/cpu:0", "", "w", "new"),
        step=StepOps(train_op=("update",), objectives=("loss",)),
    )

    assert read_by(graph, "velocity") == []
    assert read_by(graph, "w") == ["loss"]
