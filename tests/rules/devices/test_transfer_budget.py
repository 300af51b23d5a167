from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import host, on, program, variable
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.errors import ConfigError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Details, StepOps, Tensor
from placement_checks.rules.devices.transfer_budget import TransferBudget

STEP = StepOps(train_op=("train",))


def figure(source: str, to: str, copies: int, size: int, unknown: int = 0) -> dict[str, str | int]:
    return {"from": source, "to": to, "copies": copies, "bytes": size, "unknown": unknown}


def sent(
    shape: tuple[int | None, ...] | None = (4, 2),
    *,
    to: Sequence[str] = ("GPU:0", "GPU:1"),
    **more: Any,
) -> Placement:
    """A tensor of the host that an op on each of these devices takes."""
    takers = [op(f"take_{i}", "Neg", "", device, "x") for i, device in enumerate(to)]
    return placement(
        host("x", "Placeholder"),
        *takers,
        host("train", "NoOp", *(f"^{taker.name}" for taker in takers)),
        outputs={} if shape is None else {"x": shape},
        **{"step": STEP, **more},
    )


def copies(graph: Placement) -> int:
    """The number of copies."""
    return sum(pair["copies"] for pair in TransferBudget(copies=1000).judge(graph).figures)


def test_kept(snapshot: SnapshotAssertion) -> None:
    verdict = TransferBudget(bytes=64, copies=2).judge(sent())

    assert verdict == Verdict(
        "transfer-budget",
        "kept",
        "assigned",
        findings=[],
        note=ANY,
        figures=[
            figure("/device:CPU:0", "/device:GPU:0", 1, 32),
            figure("/device:CPU:0", "/device:GPU:1", 1, 32),
        ],
    )
    assert messages(verdict) == snapshot


def test_broken_by_bytes(snapshot: SnapshotAssertion) -> None:
    graph = sent((1000, 2), lines={"x": "main.py:9 net.py:3"})

    verdict = TransferBudget(bytes=15_999).judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="x",
            op="Placeholder",
            evidence="assigned",
            expected="at most 15,999 bytes per step",
            found="16,000 bytes",
            frames=("main.py:9", "net.py:3"),
            path=(
                "x:0 /device:CPU:0 -> /device:GPU:0: 8,000 bytes",
                "x:0 /device:CPU:0 -> /device:GPU:1: 8,000 bytes",
            ),
            message=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_broken_by_copies(snapshot: SnapshotAssertion) -> None:
    (finding,) = TransferBudget(copies=1).judge(sent()).findings

    assert (finding.expected, finding.found) == ("at most 1 copy per step", "2 copies")
    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    ("budget", "state"),
    [
        ({"bytes": 64}, "kept"),
        ({"bytes": 63}, "broken"),
        ({"copies": 2}, "kept"),
        ({"copies": 1}, "broken"),
        ({"bytes": 64, "copies": 1}, "broken"),
        ({"bytes": 63, "copies": 2}, "broken"),
        ({"bytes": 0}, "broken"),
        ({"copies": 0}, "broken"),
    ],
)
def test_the_budget_is_the_most_that_is_allowed(budget: Mapping[str, int], state: str) -> None:
    assert TransferBudget(**budget).judge(sent()).state == state


@pytest.mark.parametrize("budget", [{"bytes": 0}, {"copies": 0}])
def test_nothing_is_copied_within_one_device(
    budget: Mapping[str, int], snapshot: SnapshotAssertion
) -> None:
    verdict = TransferBudget(**budget).judge(sent(to=["CPU:0", "CPU:0"]))

    assert (verdict.state, list(verdict.figures)) == ("kept", [])
    assert messages(verdict) == snapshot


def test_towers_take_the_weights_and_give_the_gradients(snapshot: SnapshotAssertion) -> None:
    """The price of towers: each weight out and each gradient back, for every tower."""
    graph = program(
        outputs={
            "tower_0/w/read": (10,),
            "tower_1/w/read": (10,),
            "gradients/tower_0/w/MatMul_grad/MatMul": (10,),
            "gradients/tower_1/w/MatMul_grad/MatMul": (10,),
        },
        step={"train_op": ("update/w",)},
    )

    verdict = TransferBudget(bytes=160).judge(graph)

    assert verdict.state == "kept"
    assert verdict.figures == [
        figure("/device:CPU:0", "/device:GPU:0", 1, 40),
        figure("/device:CPU:0", "/device:GPU:1", 1, 40),
        figure("/device:GPU:0", "/device:CPU:0", 1, 40),
        figure("/device:GPU:1", "/device:CPU:0", 1, 40),
    ]
    assert messages(verdict) == snapshot


def test_a_tensor_is_copied_once_to_each_device() -> None:
    assert copies(sent(to=["GPU:0", "GPU:0", "GPU:1"])) == 2


def test_the_outputs_of_an_op_are_separate_tensors() -> None:
    graph = placement(
        host("split", "Split"),
        on(0, "one", "Neg", "split"),
        on(0, "again", "Neg", "split:0"),
        on(0, "two", "Neg", "split:1"),
        host("train", "NoOp", "^one", "^again", "^two"),
        step=STEP,
    )

    assert copies(graph) == 2


def test_a_control_edge_copies_nothing() -> None:
    graph = placement(
        host("x", "Placeholder"),
        on(0, "after", "Neg", "^x"),
        host("train", "NoOp", "^after"),
        step=STEP,
    )

    assert copies(graph) == 0


def test_ops_outside_the_step_are_not_counted() -> None:
    graph = sent()
    more = placement(*graph.ops.values(), on(0, "other", "Neg", "train"), step=STEP)

    assert copies(more) == 2


def test_without_a_train_op_all_ops_are_counted(
    snapshot: SnapshotAssertion,
) -> None:
    (finding,) = TransferBudget(bytes=63).judge(sent(step=StepOps())).findings

    assert messages(finding) == snapshot


def test_handles_are_not_copied() -> None:
    class Known(Details):
        def outputs(self, op: str) -> tuple[Tensor, ...]:
            return (Tensor("resource", ()),)

    graph = placement(
        variable("w"),
        on(0, "read", "ReadVariableOp", "w"),
        host("train", "NoOp", "^read"),
        step=STEP,
    )

    assert copies(replace(graph, details=Known())) == 0


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 40), ("float64", 80), ("bfloat16", 20), ("int8", 10), ("bool", 10), ("int4", 5)],
)
def test_the_size_of_every_dtype(dtype: str, size: int) -> None:
    class Known(Details):
        def outputs(self, op: str) -> tuple[Tensor, ...]:
            return (Tensor(dtype, (5, 2)),)

    graph = replace(sent(to=["GPU:0"]), details=Known())

    assert TransferBudget(bytes=1000).judge(graph).figures == [
        figure("/device:CPU:0", "/device:GPU:0", 1, size)
    ]


@pytest.mark.parametrize("dtype", ["string", "variant"])
def test_the_size_of_strings_and_variants_is_not_known(dtype: str) -> None:
    class Known(Details):
        def outputs(self, op: str) -> tuple[Tensor, ...]:
            return (Tensor(dtype, (5, 2)),)

    verdict = TransferBudget(bytes=1000).judge(replace(sent(to=["GPU:0"]), details=Known()))

    assert verdict.state == "not-checked"
    assert verdict.figures == [figure("/device:CPU:0", "/device:GPU:0", 1, 0, 1)]


def test_the_largest_pairs_are_shown_and_the_others_counted(snapshot: SnapshotAssertion) -> None:
    """Each of three GPUs sends to the two others."""
    ops = []
    for i in range(3):
        ops.append(on(i, f"x_{i}", "Neg"))
        ops += [on(k, f"take_{i}_{k}", "Neg", f"x_{i}") for k in range(3) if k != i]
    graph = placement(*ops, machine="gpu*3", outputs={f"x_{i}": (i + 1,) for i in range(3)})

    verdict = TransferBudget().judge(graph)

    assert messages(verdict) == snapshot
    assert len(verdict.figures) == 6


def test_the_path_has_the_largest_copies() -> None:
    tensors = [host(f"x_{i}", "Const") for i in range(10)]
    takers = [on(0, f"take_{i}", "Neg", f"x_{i}") for i in range(10)]
    graph = placement(*tensors, *takers, outputs={f"x_{i}": (i,) for i in range(1, 10)})

    (finding,) = TransferBudget(bytes=0).judge(graph).findings

    assert finding.object == "x_9"
    assert [line.partition(":")[0] for line in finding.path] == [f"x_{i}" for i in range(9, 1, -1)]


def test_copies_of_unknown_size_are_counted_and_shown(snapshot: SnapshotAssertion) -> None:
    verdict = TransferBudget(copies=1).judge(sent(None))

    assert messages(verdict) == snapshot
    (finding,) = verdict.findings
    assert finding.path[0] == "x:0 /device:CPU:0 -> /device:GPU:0: unknown size"


def test_a_finding_does_not_need_all_sizes() -> None:
    graph = sent()
    graph = placement(
        *graph.ops.values(),
        on(0, "more", "Neg", "unknown"),
        host("unknown", "Placeholder"),
        outputs={"x": (4, 2)},
    )

    assert TransferBudget(bytes=63).judge(graph).state == "broken"
    assert TransferBudget(bytes=64).judge(graph).state == "not-checked"


@pytest.mark.parametrize("rows", [7, 8, 100])
def test_rows_fill_the_first_dimension_that_the_graph_leaves_open(rows: int) -> None:
    """The whole batch, which both towers take."""
    graph = sent((None, 2))

    verdict = TransferBudget(bytes=10_000, rows=rows).judge(graph)

    assert [pair["bytes"] for pair in verdict.figures] == [rows * 8, rows * 8]


def test_other_dimensions_that_are_open_stay_unknown() -> None:
    verdict = TransferBudget(bytes=1000, rows=8).judge(sent((None, None)))

    assert [pair["unknown"] for pair in verdict.figures] == [1, 1]


def towers(*ops: Op, outputs: Mapping[str, tuple[int | None, ...]], **more: Any) -> Placement:
    """Towers with losses that go to the host: the only copies are the `outputs`."""
    return program(*ops, outputs=outputs, step={"train_op": ("loss",), **more})


def test_the_rows_of_a_tower_are_its_part_of_the_batch() -> None:
    """Of 9 rows, five."""
    graph = towers(
        on(0, "tower_0/loss", "Softmax", "tower_0/w/MatMul"),
        outputs={
            "tower_0/loss": (None, 3),
            "tower_1/loss": (1,),
            "tower_0/w/read": (1,),
            "tower_1/w/read": (1,),
        },
    )

    verdict = TransferBudget(bytes=1000, rows=9).judge(graph)

    assert verdict.state == "kept"
    assert figure("/device:GPU:0", "/device:CPU:0", 1, 5 * 3 * 4) in verdict.figures


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("Split", 4 * 2 * 4),
        ("SplitV", 4 * 2 * 4),
        ("StridedSlice", 4 * 2 * 4),
        ("Slice", 4 * 2 * 4),
        ("Unpack", 4 * 2 * 4),
        ("DynamicPartition", 4 * 2 * 4),
        ("Identity", 8 * 2 * 4),
    ],
)
def test_the_host_slices_the_rows_of_a_tower(kind: str, size: int) -> None:
    graph = towers(
        host("images", "Placeholder"),
        host("part", kind, "images"),
        on(0, "tower_0/x", "Relu", "part"),
        outputs={"part": (None, 2)},
    )

    verdict = TransferBudget(bytes=1000, rows=8).judge(graph)

    assert figure("/device:CPU:0", "/device:GPU:0", 2, size, 1) in verdict.figures


def test_the_rows_of_a_placeholder_that_is_listed_for_a_tower_are_a_part() -> None:
    graph = towers(
        *(host(f"x_{i}", "Placeholder") for i in (0, 1)),
        *(on(i, f"tower_{i}/x", "Relu", f"x_{i}") for i in (0, 1)),
        outputs={"x_0": (None, 2), "x_1": (None, 2)},
        inputs=(("x_0:0",), ("x_1:0",)),
    )

    verdict = TransferBudget(bytes=1000, rows=8).judge(graph)

    assert figure("/device:CPU:0", "/device:GPU:0", 2, 4 * 2 * 4, 1) in verdict.figures


def test_one_list_of_inputs_for_all_towers_is_the_whole_batch() -> None:
    graph = towers(
        host("x", "Placeholder"),
        *(on(i, f"tower_{i}/x", "Relu", "x") for i in (0, 1)),
        outputs={"x": (None, 2)},
        inputs=(("x:0",),),
    )

    verdict = TransferBudget(bytes=1000, rows=8).judge(graph)

    assert figure("/device:CPU:0", "/device:GPU:1", 2, 8 * 2 * 4, 1) in verdict.figures


def test_without_a_budget_the_transfers_are_shown_all_the_same(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = TransferBudget().judge(sent())
    assert verdict == Verdict(
        "transfer-budget",
        "not-checked",
        None,
        ANY,
        note=ANY,
        figures=[
            figure("/device:CPU:0", "/device:GPU:0", 1, 32),
            figure("/device:CPU:0", "/device:GPU:1", 1, 32),
        ],
    )
    assert messages(verdict) == snapshot


def test_rows_alone_are_no_budget(snapshot: SnapshotAssertion) -> None:
    assert messages(TransferBudget(rows=8).judge(sent())) == snapshot


def test_not_checked_where_the_size_is_not_known(snapshot: SnapshotAssertion) -> None:
    verdict = TransferBudget(bytes=1000).judge(sent((None, 2)))

    assert (verdict.state, verdict.evidence) == ("not-checked", None)
    assert messages(verdict) == snapshot


def test_a_budget_of_copies_needs_no_sizes() -> None:
    assert TransferBudget(copies=2).judge(sent(None)).state == "kept"


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(sent(placer=None), id="no placer"),
        pytest.param(sent(assigned=Missing("it died")), id="unplaced"),
        pytest.param(sent(requested=Missing("a log lacks requested devices")), id="log"),
        pytest.param(sent(placer="log", machine="cpu*1"), id="log of a machine without GPUs"),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = TransferBudget(bytes=0).judge(graph)
    assert verdict == Verdict("transfer-budget", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "field", ["bytes", "copies", "link_bytes", "link_copies", "constant_bytes", "rows"]
)
def test_a_number_below_zero_is_refused(field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TransferBudget(**{field: -1})

    assert str(refused.value) == f"{field}: -1 is below 0; give a number of 0 or more"


CLUSTER = "ps*2; worker*2: gpu*2"
LARGE = 1 << 18  # floats, of a constant as large as is allowed


def gpu(worker: int, index: int = 0) -> str:
    return f"/job:worker/replica:0/task:{worker}/device:GPU:{index}"


def ps(server: int) -> str:
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"


def task(job: str, index: int) -> str:
    return f"/job:{job}/task:{index}"


def linked(
    *sends: tuple[str, tuple[int | None, ...] | None, Sequence[str]],
    kind: str = "Placeholder",
    **more: Any,
) -> Placement:
    """Tensors x0, x1, …, each given as its device, its shape, and the devices that take it."""
    ops = []
    for number, (source, _, takers) in enumerate(sends):
        ops.append(op(f"x{number}", kind, source, source))
        ops += [
            op(f"take{number}/{i}", "Neg", to, to, f"x{number}") for i, to in enumerate(takers)
        ]
    shapes = {f"x{number}": shape for number, (_, shape, _) in enumerate(sends) if shape}
    step = host("train", "NoOp", *(f"^{taker.name}" for taker in ops if taker.type == "Neg"))
    return placement(*ops, step, **{"step": STEP, "machine": CLUSTER, "outputs": shapes, **more})


BOTH = (ps(0), (10,), [gpu(0), gpu(0, 1), gpu(1)])  # 80 bytes to one worker, 40 to the other


def test_a_link_over_its_bytes(snapshot: SnapshotAssertion) -> None:
    graph = linked(BOTH, lines={"x0": "main.py:9 net.py:3"})

    verdict = TransferBudget(link_bytes=79).judge(graph)

    assert verdict == Verdict(
        "transfer-budget",
        "broken",
        "assigned",
        findings=[
            Finding(
                object="/job:ps/task:0",
                op="",
                evidence="assigned",
                expected="at most 79 bytes per step",
                found="80 bytes",
                frames=("main.py:9", "net.py:3"),
                path=(
                    f"x0:0 {ps(0)} -> {gpu(0)}: 40 bytes",
                    f"x0:0 {ps(0)} -> {gpu(0, 1)}: 40 bytes",
                ),
                message=ANY,
                fix=ANY,
            )
        ],
        note=ANY,
        figures=[
            figure(ps(0), gpu(0), 1, 40),
            figure(ps(0), gpu(0, 1), 1, 40),
            figure(ps(0), gpu(1), 1, 40),
        ],
    )
    assert messages(verdict) == snapshot


def test_a_link_over_its_copies(snapshot: SnapshotAssertion) -> None:
    (finding,) = TransferBudget(link_copies=1).judge(linked(BOTH)).findings

    assert (finding.object, finding.expected, finding.found) == (
        "/job:ps/task:0",
        "at most 1 copy per step",
        "2 copies",
    )
    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    ("budget", "state"),
    [
        ({"link_bytes": 80}, "kept"),
        ({"link_bytes": 79}, "broken"),
        ({"link_copies": 2}, "kept"),
        ({"link_copies": 1}, "broken"),
        ({"link_bytes": 80, "link_copies": 1}, "broken"),
        ({"link_bytes": 79, "link_copies": 2}, "broken"),
        ({"link_bytes": 0}, "broken"),
        ({"link_copies": 0}, "broken"),
        ({"link_bytes": 80, "bytes": 119}, "broken"),
        ({"link_bytes": 80, "bytes": 120}, "kept"),
    ],
)
def test_the_budget_of_a_link_is_the_most_that_is_allowed(
    budget: Mapping[str, int], state: str
) -> None:
    assert TransferBudget(**budget).judge(linked(BOTH)).state == state


@pytest.mark.parametrize(
    "others",
    [
        [1],
        [1, 2],
    ],
)
def test_a_task_that_sends_too_much_to_several_is_one_finding(
    others: Sequence[int], snapshot: SnapshotAssertion
) -> None:
    graph = linked(
        (ps(0), (20,), [gpu(0)]),
        *((ps(0), (11,), [gpu(other)]) for other in others),
        (ps(0), (10,), [gpu(3)]),
        machine="ps*1; worker*4: gpu*1",
    )

    (finding,) = TransferBudget(link_bytes=40).judge(graph).findings

    assert messages(finding) == snapshot
    assert finding.path == (f"x0:0 {ps(0)} -> {gpu(0)}: 80 bytes",)


def test_every_task_over_the_budget_is_a_finding() -> None:
    graph = linked(
        (ps(0), (11,), [gpu(0)]),
        (ps(1), (12,), [gpu(0)]),
        (gpu(0), (30,), [ps(0), ps(1)]),
        (gpu(1), (10,), [ps(0)]),
    )

    findings = TransferBudget(link_bytes=40).judge(graph).findings

    assert [(finding.object, finding.found) for finding in findings] == [
        ("/job:worker/task:0", "120 bytes"),
        ("/job:ps/task:1", "48 bytes"),
        ("/job:ps/task:0", "44 bytes"),
    ]


def test_a_finding_without_a_train_op_mentions_it(snapshot: SnapshotAssertion) -> None:
    (finding,) = TransferBudget(link_bytes=79).judge(linked(BOTH, step=StepOps())).findings

    assert messages(finding) == snapshot


def test_the_budgets_of_the_step_and_of_a_link_are_separate_findings() -> None:
    findings = TransferBudget(copies=2, link_copies=1).judge(linked(BOTH)).findings

    assert [(finding.object, finding.found) for finding in findings] == [
        ("x0", "3 copies"),
        ("/job:ps/task:0", "2 copies"),
    ]


@pytest.mark.parametrize("budget", [{"link_bytes": 0}, {"link_copies": 0}])
def test_nothing_goes_over_a_link_within_one_task(budget: Mapping[str, int]) -> None:
    within = (gpu(0), (10,), [gpu(0, 1), "/job:worker/task:0/cpu:0"])
    assert TransferBudget(**budget).judge(linked(within)).state == "kept"


@pytest.mark.parametrize("budget", [{"link_bytes": 0}, {"link_copies": 0}])
def test_one_host_has_no_links_to_judge(
    budget: Mapping[str, int], snapshot: SnapshotAssertion
) -> None:
    verdict = TransferBudget(**budget).judge(sent((10,)))
    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
    assert TransferBudget(copies=9, **budget).judge(sent((10,))).state == "kept"


def test_a_constant_that_breaks_two_budgets_is_one_finding() -> None:
    graph = linked((ps(0), (20,), [gpu(0)]), kind="Const")
    (finding,) = TransferBudget(bytes=0, constant_bytes=0).judge(graph).findings
    assert (finding.object, finding.found) == ("x0", "80 bytes")


def test_copies_within_a_task_do_not_count_for_a_link(snapshot: SnapshotAssertion) -> None:
    graph = linked((gpu(0), (10,), [gpu(0, 1), gpu(1)]))

    verdict = TransferBudget(link_bytes=40, link_copies=1).judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot
    assert len(verdict.figures) == 2


def test_within_a_task_of_a_cluster_the_note_has_devices(snapshot: SnapshotAssertion) -> None:
    verdict = TransferBudget(link_bytes=0).judge(linked((gpu(0), (10,), [gpu(0, 1)])))
    assert messages(verdict) == snapshot


def test_the_note_has_the_largest_links_and_counts_the_others(snapshot: SnapshotAssertion) -> None:
    graph = linked(
        *((ps(0), (i + 1,), [gpu(i)]) for i in range(5)), machine="ps*1; worker*5: gpu*1"
    )
    assert messages(TransferBudget(link_copies=1).judge(graph)) == snapshot


def test_a_link_with_sizes_that_are_not_known_is_not_judged(snapshot: SnapshotAssertion) -> None:
    graph = linked((ps(0), None, [gpu(0), gpu(1)]), (gpu(0), None, [gpu(0, 1)]))

    assert messages(TransferBudget(link_bytes=10).judge(graph)) == snapshot
    assert messages(TransferBudget(bytes=10).judge(graph)) == snapshot
    assert messages(TransferBudget(bytes=10, link_bytes=10).judge(graph)) == snapshot
    assert TransferBudget(link_copies=1).judge(graph).state == "kept"


def test_unknown_sizes_within_a_task_do_not_count_for_a_link(
    snapshot: SnapshotAssertion,
) -> None:
    graph = linked((ps(0), (10,), [gpu(0)]), (gpu(0), None, [gpu(0, 1)]))

    verdict = TransferBudget(link_bytes=40).judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_finding_on_a_link_does_not_need_all_sizes() -> None:
    graph = linked((ps(0), (11,), [gpu(0)]), (ps(1), None, [gpu(0)]))
    assert TransferBudget(link_bytes=40).judge(graph).state == "broken"


def test_rows_determine_the_size_of_copies_over_a_link() -> None:
    graph = linked((ps(0), (None, 2), [gpu(0)]))

    assert TransferBudget(link_bytes=64, rows=8).judge(graph).state == "kept"
    assert TransferBudget(link_bytes=63, rows=8).judge(graph).state == "broken"


@pytest.mark.parametrize(
    "takers",
    [
        [gpu(0)],
        [gpu(0), gpu(0, 1), gpu(1), "/job:ps/task:0/gpu:0"],
    ],
)
def test_a_large_constant_goes_to_other_tasks(
    takers: Sequence[str], snapshot: SnapshotAssertion
) -> None:
    graph = linked((ps(0), (LARGE + 1,), takers), kind="Const", lines={"x0": "main.py:9 net.py:3"})

    verdict = TransferBudget().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="x0",
            op="Const",
            evidence="assigned",
            expected="at most 1,048,576 bytes per step",
            found="1,048,580 bytes",
            frames=("main.py:9", "net.py:3"),
            path=tuple(
                f"x0:0 {ps(0)} -> {to}: 1,048,580 bytes" for to in takers if "worker" in to
            ),
            message=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_a_constant_of_unknown_size_may_be_a_large_one(snapshot: SnapshotAssertion) -> None:
    graph = linked((ps(0), None, [gpu(0)]), kind="Const")

    verdict = TransferBudget(link_copies=100).judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_every_large_constant_is_a_finding() -> None:
    graph = linked(
        (ps(0), (LARGE + 1,), [gpu(0)]),
        (ps(1), (LARGE,), [gpu(0)]),
        (gpu(1), (LARGE + 2,), [gpu(0)]),
        kind="Const",
    )

    findings = TransferBudget(link_bytes=1 << 30).judge(graph).findings

    assert [finding.object for finding in findings] == ["x0", "x2"]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(linked((ps(0), (LARGE,), [gpu(0)]), kind="Const"), id="as large as allowed"),
        pytest.param(linked((gpu(0), (LARGE * 2,), [gpu(0, 1)]), kind="Const"), id="in one task"),
        pytest.param(sent((LARGE * 2,)), id="one host"),
        pytest.param(linked((ps(0), (LARGE * 2,), [gpu(0)]), kind="VariableV2"), id="a variable"),
        pytest.param(linked((ps(0), (LARGE * 2,), [gpu(0)])), id="an input"),
    ],
)
def test_kept_without_a_large_constant_between_tasks(
    graph: Placement, snapshot: SnapshotAssertion
) -> None:
    verdict = TransferBudget().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
    assert TransferBudget(copies=9).judge(graph).state == "kept"


@pytest.mark.parametrize(("most", "state"), [(40, "kept"), (39, "broken"), (0, "broken")])
def test_the_largest_constant_that_may_travel(most: int, state: str) -> None:
    graph = linked((ps(0), (10,), [gpu(0)]), kind="Const")
    assert TransferBudget(constant_bytes=most, copies=1).judge(graph).state == state


def test_a_constant_that_the_step_does_not_read_does_not_travel() -> None:
    graph = linked((ps(0), (10,), [gpu(0)]))
    idle = [op("c", "Const", ps(0), ps(0)), op("other", "Neg", gpu(1), gpu(1), "c")]
    graph = placement(
        *graph.ops.values(),
        *idle,
        machine=CLUSTER,
        step=STEP,
        outputs={"x0": (10,), "c": (LARGE * 2,)},
    )
    assert TransferBudget(link_bytes=40).judge(graph).state == "kept"


def test_a_constant_of_unknown_size_is_not_over_the_smallest_budget() -> None:
    graph = placement(
        op("table", "Const", "/job:ps/cpu:0", "/job:ps/cpu:0"),
        op("use", "MatMul", "/job:worker/cpu:0", "/job:worker/cpu:0", "table"),
        machine="ps*1; worker*1",
    )

    assert TransferBudget(constant_bytes=0).judge(graph).state == "not-checked"


def test_without_rows_the_size_of_values_per_row_is_unknown(
    snapshot: SnapshotAssertion,
) -> None:
    graph = program(
        host("shown", "Mean", "tower_1/w/MatMul"),
        host("train", "NoOp", "^update/w", "^step/add", "^shown"),
        outputs={"tower_1/w/MatMul": (None, 4)},
    )

    assert messages(TransferBudget().judge(graph)) == snapshot
    assert messages(TransferBudget(rows=8).judge(graph)) == snapshot


@pytest.mark.parametrize("gpus", [4, 5])
def test_four_pairs_of_devices_are_listed(gpus: int, snapshot: SnapshotAssertion) -> None:
    graph = placement(
        op("a", "MatMul", "/cpu:0", "CPU:0"),
        *(op(f"b{i}", "Neg", f"/gpu:{i}", f"GPU:{i}", "a") for i in range(gpus)),
        outputs={"a": (4,)},
        machine=f"gpu*{gpus}",
    )

    assert messages(TransferBudget().judge(graph)) == snapshot


def test_links_are_judged_without_a_machine() -> None:
    graph = placement(op("a", "MatMul", "/cpu:0", "CPU:0"), machine=None)

    assert TransferBudget(link_bytes=1).judge(graph).state == "kept"


def test_pairs_with_equal_bytes_are_sorted_by_copies(
    snapshot: SnapshotAssertion,
) -> None:
    graph = placement(
        op("whole", "Neg", "/cpu:0", "CPU:0"),
        *(op(name, "Neg", "/cpu:0", "CPU:0") for name in ("half", "other")),
        op("one", "Neg", "/gpu:0", "GPU:0", "whole"),
        op("two", "Add", "/gpu:1", "GPU:1", "half", "other"),
        outputs={"whole": (4,), "half": (2,), "other": (2,)},
    )

    assert messages(TransferBudget().judge(graph)) == snapshot


@pytest.mark.parametrize(("shape", "size"), [((), 4), ((2,), 8), ((None,), 400)])
def test_rows_replace_only_an_unknown_first_dimension(
    shape: tuple[int | None, ...], size: int
) -> None:
    graph = placement(
        op("a", "Neg", "/cpu:0", "CPU:0"),
        op("b", "Neg", "/gpu:0", "GPU:0", "a"),
        outputs={"a": shape},
    )

    verdict = TransferBudget(rows=100).judge(graph)

    assert verdict.figures == [figure("/device:CPU:0", "/device:GPU:0", 1, size)]


def test_an_op_that_was_not_placed_sends_nothing(snapshot: SnapshotAssertion) -> None:
    graph = placement(op("a", "Neg"), op("b", "Neg", "/gpu:0", "GPU:0", "a"), outputs={"a": (4,)})

    assert messages(TransferBudget().judge(graph)) == snapshot
