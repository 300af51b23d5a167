from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import (
    gradient,
    host,
    mixed_losses,
    objects_of,
    on,
    program,
    split,
    variable,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Details
from placement_checks.rules.devices.gradients_colocated import GradientsColocated

ADRIFT = "gradients/tower_1/w/MatMul_grad/MatMul"


def adrift(*names: str, **more: Any) -> list[Op]:
    """Backward ops that request no device and end on the first GPU."""
    return [op(name, "MatMul", "", "GPU:0", "tower_1/x", **more) for name in names]


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(GradientsColocated(**parameters), graph)


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    """One tower is judged as well: its gradients may be on the host."""
    verdict = GradientsColocated().judge(program(gpus=range(count)))

    assert verdict == Verdict("gradients-colocated", "kept", "assigned", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *adrift(ADRIFT),
        device_lines={ADRIFT: "main.py:4"},
        lines={ADRIFT: "main.py:40 net.py:3", "tower_1/w/MatMul": "net.py:9"},
    )

    verdict = GradientsColocated().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object=ADRIFT,
            op="MatMul",
            evidence="assigned",
            expected="/device:GPU:1",
            found="/device:GPU:0",
            frames=("main.py:40", "net.py:3"),
            device_line="main.py:4",
            path=(
                f"{ADRIFT} (MatMul) on /device:GPU:0",
                "tower_1/w/MatMul (MatMul) on /device:GPU:1 net.py:9",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_the_backward_pass_of_every_tower_but_the_first_is_found(count: int) -> None:
    names = [gradient(i) for i in range(count)]

    assert objects(program(*adrift(*names), gpus=range(count))) == names[1:]


def test_a_recorded_forward_op_is_not_explained_by_its_name(
    snapshot: SnapshotAssertion,
) -> None:
    graph = program(
        *adrift("any/name", colocated=["tower_1/w/MatMul"]), step={"backward": {"any/name"}}
    )

    (finding,) = GradientsColocated().judge(graph).findings

    assert finding.object == "any/name"
    assert messages(finding) == snapshot
    assert finding.path[1] == "tower_1/w/MatMul (MatMul) on /device:GPU:1"


def test_the_recorded_forward_op_precedes_the_name() -> None:
    class Noted(Details):
        def forward_op(self, op: str) -> str:
            return "tower_0/w/MatMul" if op == ADRIFT else ""

    graph = replace(program(*adrift(ADRIFT)), details=Noted())

    assert objects(graph) == []


def test_colocation_with_another_backward_op_does_not_name_a_forward_op(
    snapshot: SnapshotAssertion,
) -> None:
    graph = program(*adrift(ADRIFT, colocated=[gradient(0)]))

    (finding,) = GradientsColocated().judge(graph).findings

    assert messages(finding) == snapshot
    assert finding.path[1] == "tower_1/w/MatMul (MatMul) on /device:GPU:1"


@pytest.mark.parametrize(
    "scope", ["gradients", "gradients_1", "train/gradients", "tower_1/gradients_12"]
)
def test_a_saved_graph_is_judged_by_the_scopes_of_gradients(scope: str) -> None:
    name = f"{scope}/tower_1/w/MatMul_grad/MatMul_1"

    assert objects(program(*adrift(name))) == [name]


def test_a_request_for_another_gpu_is_named(snapshot: SnapshotAssertion) -> None:
    graph = program(on(0, ADRIFT, "MatMul", "tower_1/x"))

    (finding,) = GradientsColocated().judge(graph).findings

    assert messages(finding) == snapshot


def test_a_backward_op_on_the_host_of_a_forward_op_on_a_gpu() -> None:
    (finding,) = GradientsColocated().judge(program(host(ADRIFT, "MatMul", "tower_1/x"))).findings

    assert (finding.expected, finding.found) == ("/device:GPU:1", "/device:CPU:0")


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(
            [
                host("table/lookup", "GatherV2", "w", "words"),
                on(1, "gradients/table/lookup_grad/Reshape", "Reshape", "tower_1/loss"),
            ],
            id="the forward op is a lookup on the host",
        ),
        pytest.param(
            [op(ADRIFT, "NoOp", "", "GPU:0", "^tower_1/x")], id="an op that keeps the order"
        ),
        pytest.param(
            [op(ADRIFT, "Identity", "", "CPU:0", "tower_1/x")], id="an op that passes on"
        ),
        pytest.param(
            [op(ADRIFT, "Switch", "", "CPU:0", "tower_1/x", "tower_1/loss")],
            id="a branch, which passes on",
        ),
        pytest.param(
            [
                op(
                    ADRIFT,
                    "MatMul",
                    "/gpu:1",
                    "CPU:0",
                    "tower_1/x",
                    fallback_reason="no GPU kernel",
                )
            ],
            id="an op that has no kernel there",
        ),
        pytest.param([op(ADRIFT, "MatMul", "", "", "tower_1/x")], id="an op that nobody placed"),
        pytest.param(
            [op("tower_1/w/MatMul", "MatMul", "/gpu:1", "", "tower_1/x", "tower_1/w/read")],
            id="a forward op that nobody placed",
        ),
        pytest.param(
            [op("sum/w", "AddN", "", "GPU:0", gradient(0), gradient(1))],
            id="an average that is no backward op",
        ),
    ],
)
def test_kept_by_backward_ops_that_may_be_elsewhere(ops: Sequence[Op]) -> None:
    assert GradientsColocated().judge(program(*ops)).state == "kept"


@pytest.mark.parametrize(
    ("type", "colocated", "found"),
    [
        ("Shape", ["w"], []),
        ("Const", ["w"], []),
        ("Cast", ["w"], []),
        ("MatMul", ["w"], [ADRIFT]),
        ("Shape", [], [ADRIFT]),
        ("Shape", ["tower_1/x"], [ADRIFT]),
    ],
)
def test_the_shape_of_a_variable_is_where_the_variable_is(
    type: str, colocated: Sequence[str], found: Sequence[str]
) -> None:
    """As `VariableShape` is; TensorFlow makes a constant of a known shape, and casts it."""

    class Noted(Details):
        def forward_op(self, op: str) -> str:
            return "tower_1/w/MatMul" if op == ADRIFT else ""

    graph = program(host(ADRIFT, type, "w", colocated=colocated))

    assert objects(replace(graph, details=Noted())) == found


@pytest.mark.parametrize(
    ("type", "requested", "source", "found"),
    [
        ("Shape", "", "labels", []),
        ("Shape", "", "tower_1/x", [ADRIFT]),
        ("Shape", "/cpu:0", "labels", [ADRIFT]),
        ("Neg", "", "labels", [ADRIFT]),
    ],
)
def test_the_placer_keeps_a_shape_next_to_its_input(
    type: str, requested: str, source: str, found: Sequence[str]
) -> None:
    class Noted(Details):
        def forward_op(self, op: str) -> str:
            return "tower_1/w/MatMul" if op == ADRIFT else ""

    graph = program(
        host("labels", "IteratorGetNext"), op(ADRIFT, type, requested, "CPU:0", source)
    )

    assert objects(replace(graph, details=Noted())) == found


def test_an_op_bound_to_another_device_has_a_kernel() -> None:
    graph = program(
        op(
            ADRIFT,
            "MatMul",
            "/gpu:1",
            "CPU:0",
            "tower_1/x",
            fallback_reason="bound",
            fell_with_another=True,
        )
    )

    assert objects(graph) == [ADRIFT]


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), [ADRIFT, "gradients/tower_1/loss_grad/Mul"]),
        (("MatMul",), ["gradients/tower_1/loss_grad/Mul"]),
        ((ADRIFT, "Mul"), []),
        (("matmul", "tower_1/w/MatMul"), [ADRIFT, "gradients/tower_1/loss_grad/Mul"]),
    ],
)
def test_allowed_by_type_and_by_name(allow: Sequence[str], left: Sequence[str]) -> None:
    graph = program(
        *adrift(ADRIFT), op("gradients/tower_1/loss_grad/Mul", "Mul", "", "GPU:0", "tower_1/x")
    )

    assert sorted(objects(graph, allow=allow)) == sorted(left)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(program(placer=None), id="no placer"),
        pytest.param(program(assigned=Missing("it died")), id="unplaced"),
        pytest.param(program(requested=Missing("a log lacks requested devices")), id="log"),
        pytest.param(program(placer="log", machine="cpu*1"), id="log of a machine without GPUs"),
        pytest.param(placement(on(0, "a", "MatMul")), id="no gradients"),
        pytest.param(program(step={"backward": ()}), id="none taken"),
        pytest.param(
            program(on(0, "g", "MatMul"), step={"backward": ("g",)}), id="no forward ops known"
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = GradientsColocated().judge(graph)
    assert verdict == Verdict("gradients-colocated", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_mixed_losses_matter_only_if_there_is_a_finding() -> None:
    """The forward op of a gradient is known all the same."""
    assert GradientsColocated().judge(mixed_losses()).state == "kept"


def test_colocation_with_a_missing_op_does_not_name_a_forward_op() -> None:
    assert objects(program(*adrift(ADRIFT, colocated=["gone"]))) == [ADRIFT]


def test_a_missing_forward_op_does_not_count(snapshot: SnapshotAssertion) -> None:
    class Noted(Details):
        def forward_op(self, op: str) -> str:
            return "gone"

    verdict = GradientsColocated().judge(replace(program(), details=Noted()))

    assert messages(verdict) == snapshot


def test_not_checked_if_mixed_losses_cause_the_finding(
    snapshot: SnapshotAssertion,
) -> None:
    total = on(1, "tower_1/loss", "AddN", "tower_0/loss", "tower_1/w/MatMul")

    assert messages(GradientsColocated().judge(program(total, *adrift(ADRIFT)))) == snapshot


@pytest.mark.parametrize(
    "kind",
    [
        "NoOp",
        "Identity",
        "ReadVariableOp",
        "VariableShape",
        "Const",
        "IdentityN",
        "Enter",
        "Merge",
    ],
)
def test_ops_without_computation_may_sit_anywhere(kind: str) -> None:
    graph = program(op(ADRIFT, kind, "", "GPU:0", "tower_1/x"))

    assert objects(graph) == []


@pytest.mark.parametrize(("gpu", "found"), [(0, []), (1, []), (2, ["gradients/row_grad/Reshape"])])
def test_the_gradient_of_a_lookup_may_be_on_the_gpu_of_its_tower(
    gpu: int, found: Sequence[str]
) -> None:
    """The table is on the first GPU, and the second tower looks rows up."""
    graph = program(
        variable("table", at="GPU:0"),
        on(0, "row", "ResourceGather", "table", "tower_1/x", colocated=["table"]),
        on(1, "tower_1/w/MatMul", "MatMul", "row", "tower_1/w/read"),
        on(gpu, "gradients/row_grad/Reshape", "Reshape", gradient(1)),
        gpus=range(3),
    )

    assert objects(graph) == found


@pytest.mark.parametrize(("gpu", "found"), [(1, []), (2, ["gradients/kernel_grad/Mul"])])
def test_the_gradient_of_a_shared_op_may_be_on_the_gpu_of_its_tower(
    gpu: int, found: Sequence[str]
) -> None:
    graph = program(
        on(0, "kernel", "Mul", "tower_0/w/read", "scale"),
        *(on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", "kernel") for i in range(3)),
        on(gpu, "gradients/kernel_grad/Mul", "Mul", gradient(1), "scale"),
        gpus=range(3),
    )

    assert objects(graph) == found


def test_the_layers_of_a_split_model_are_no_towers(snapshot: SnapshotAssertion) -> None:
    backward = op("gradients/second_grad/MatMul", "MatMul", "", "GPU:0", "first", "second")

    assert messages(GradientsColocated().judge(split(backward))) == snapshot


@pytest.mark.parametrize(("requested", "found"), [("", False), ("GPU:0", True)])
def test_an_op_that_reads_a_shape_may_stay_with_its_input(requested: str, found: bool) -> None:
    """The placer puts the op there, unless the program requests a device."""
    shape = op("gradients/second_grad/Shape", "Shape", requested, "GPU:0", "first")

    assert objects(split(shape)) == ["gradients/second_grad/Shape"] * found
