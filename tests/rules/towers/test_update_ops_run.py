from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.snapshots import messages
from support.towers import (
    gradient,
    host,
    objects_of,
    on,
    program,
    variable,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Finding, Op, Placement, Verdict
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.rules.towers.update_ops_run import UpdateOpsRun


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(UpdateOpsRun(**parameters), graph)


def with_means(
    *runs: int,
    gpus: Sequence[int] | range = (0, 1),
    collected: bool = True,
    ops: Sequence[Op] = (),
    step: Mapping[str, Sequence[str]] | None = None,
    **more: Any,
) -> Placement:
    """Towers with a moving mean; the step runs the updates of the towers in `runs`."""
    statistics = [variable("mean")]
    for i in range(len(gpus)):
        statistics += [
            on(gpus[i], f"tower_{i}/moments", "Mean", f"tower_{i}/w/MatMul"),
            host(f"tower_{i}/away", "Sub", "mean", f"tower_{i}/moments"),
            host(f"tower_{i}/update", "AssignSubVariableOp", "mean", f"tower_{i}/away"),
        ]
    names = [f"tower_{i}/update" for i in range(len(gpus))]
    return program(
        *statistics,
        host("train", "NoOp", "^update/w", "^step/add", *(f"^{names[i]}" for i in runs)),
        *ops,
        gpus=gpus,
        step={"update_ops": names if collected else (), **(step or {})},
        **more,
    )


@pytest.mark.parametrize("collected", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_kept(count: int, collected: bool, snapshot: SnapshotAssertion) -> None:
    """The collection or the assigned value identifies them; one tower is enough."""
    graph = with_means(*range(count), gpus=range(count), collected=collected)

    verdict = UpdateOpsRun().judge(graph)

    assert verdict == Verdict(
        "update-ops-run",
        "kept",
        "requested",
        findings=[],
        note=ANY,
    )
    assert messages(verdict) == snapshot


def test_the_line_of_the_update_replaces_an_unknown_line_of_the_train_op() -> None:
    (finding,) = (
        UpdateOpsRun().judge(with_means(gpus=[0], lines={"tower_0/update": "main.py:30"})).findings
    )

    assert finding.where == "main.py:30"


def test_all_that_are_left_out_are_alike() -> None:
    findings = UpdateOpsRun().judge(with_means(gpus=range(3))).findings

    assert len(findings) == 3
    assert len({(finding.alike, finding.fix) for finding in findings}) == 1


@pytest.mark.parametrize("collected", [True, False])
def test_broken(collected: bool, snapshot: SnapshotAssertion) -> None:
    graph = with_means(
        gpus=[0],
        collected=collected,
        lines={"tower_0/update": "main.py:30 net.py:7", "train": "main.py:50"},
    )

    verdict = UpdateOpsRun().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="tower_0/update",
            op="AssignSubVariableOp",
            evidence="requested",
            expected="part of 'train'",
            found="not part of the step",
            frames=("main.py:50",),
            path=("tower_0/update (AssignSubVariableOp) net.py:7",),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 12])
def test_no_tower_updates_its_statistics(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = UpdateOpsRun().judge(with_means(gpus=range(count)))

    assert [finding.object for finding in verdict.findings] == [
        f"tower_{i}/update" for i in range(count)
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 12])
@pytest.mark.parametrize("tower", ["", "all"])
def test_the_first_tower_alone_updates_its_statistics(
    count: int, tower: str, snapshot: SnapshotAssertion
) -> None:
    """slim and others do this; a program can declare that all towers' updates must run."""
    verdict = UpdateOpsRun(tower=tower).judge(with_means(0, gpus=range(count)))

    assert [finding.object for finding in verdict.findings] == [
        f"tower_{i}/update" for i in range(1, count) if tower
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 12])
def test_the_last_tower_alone_updates_its_statistics(
    count: int, snapshot: SnapshotAssertion
) -> None:
    """slim's training of Inception does this."""
    graph = with_means(count - 1, gpus=range(count))

    verdict = UpdateOpsRun().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot
    assert objects(graph, tower="all") == [f"tower_{i}/update" for i in range(count - 1)]


@pytest.mark.parametrize(("tower", "left"), [(0, []), (1, ["tower_0/update", "tower_2/update"])])
def test_statistics_of_its_own_in_each_tower(tower: int, left: Sequence[str]) -> None:
    """Checkpoints and evaluation use the statistics of the first tower."""
    own = [
        op
        for i in range(3)
        for op in (
            variable(f"mean_{i}"),
            host(f"tower_{i}/away", "Sub", f"mean_{i}", f"tower_{i}/moments"),
            host(f"tower_{i}/update", "AssignSubVariableOp", f"mean_{i}", f"tower_{i}/away"),
        )
    ]

    assert objects(with_means(tower, gpus=range(3), ops=own)) == left


def test_a_tower_in_the_middle_alone_updates_its_statistics() -> None:
    assert UpdateOpsRun().judge(with_means(1, gpus=range(3))).state == "kept"


def group(name: str, *towers: int) -> Op:
    return host(name, "NoOp", *(f"^tower_{i}/update" for i in towers))


@pytest.mark.parametrize("towers", [(0, 1), (0,)])
def test_a_separate_group_may_run_the_updates(
    towers: Sequence[int], snapshot: SnapshotAssertion
) -> None:
    """A callback of the program may run it."""
    graph = with_means(ops=[group("updates", *towers)])

    verdict = UpdateOpsRun().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
    assert objects(graph, tower="all") == ["tower_0/update", "tower_1/update"]
    assert objects(graph, tower="/gpu:0") == ["tower_0/update"]


def test_a_group_of_the_last_towers_updates_is_no_choice() -> None:
    graph = with_means(ops=[group("updates", 1)])

    assert objects(graph) == ["tower_0/update", "tower_1/update"]


def test_half_of_a_towers_updates() -> None:
    """The step updates the mean of the first tower and not its variance."""
    graph = with_means(
        0,
        ops=[
            variable("variance"),
            *(
                host(f"tower_{i}/second", "AssignSubVariableOp", "variance", f"tower_{i}/moments")
                for i in (0, 1)
            ),
        ],
        collected=False,
    )

    findings = UpdateOpsRun().judge(graph).findings

    others = "evaluation uses statistics of the other towers' examples alone"
    initial = "evaluation uses the initial values: no step changes them"
    assert [(finding.object, finding.consequence) for finding in findings] == [
        ("tower_1/update", others),
        ("tower_0/second", initial),
        ("tower_1/second", initial),
    ]


@pytest.mark.parametrize(
    ("tower", "runs", "left"),
    [
        ("", (1,), []),
        ("/gpu:0", (0,), []),
        ("GPU:0", (0,), []),
        ("/job:localhost/replica:0/task:0/device:GPU:0", (0,), []),
        ("/gpu:1", (1,), []),
        ("/gpu:0", (1,), ["tower_0/update"]),
        ("/gpu:1", (0,), ["tower_1/update"]),
        ("/gpu:0", (), ["tower_0/update"]),
        ("/gpu:0", (0, 1), []),
    ],
)
def test_the_updates_of_a_declared_tower_must_run(
    tower: str, runs: Sequence[int], left: Sequence[str]
) -> None:
    assert objects(with_means(*runs), tower=tower) == left


def test_an_update_of_no_tower_must_run_for_any_declared_tower() -> None:
    graph = with_means(
        0,
        ops=[host("count", "AssignAddVariableOp", "mean", "one")],
        step={"update_ops": ["tower_0/update", "tower_1/update", "count"]},
    )

    assert objects(graph, tower="/gpu:0") == ["count"]


def test_a_declared_gpu_of_a_cluster() -> None:
    """A name without a task matches the GPUs of all tasks."""
    worker = Device.parse("/job:worker/task:1")
    graph = with_means()
    ops = {
        name: op._replace(requested=op.requested.over(worker)) for name, op in graph.ops.items()
    }
    graph = graph.with_fields(ops=ops)

    assert objects(graph, tower="/gpu:1") == ["tower_1/update"]


@pytest.mark.parametrize("tower", ["/gpu:2", "/cpu:0", "/job:worker/gpu:0"])
def test_a_declared_device_without_tower(tower: str) -> None:
    verdict = UpdateOpsRun(tower=tower).judge(with_means())

    assert verdict.reason == (
        f"update-ops-run.tower is {tower}, and no tower is on this device; name the GPU of a "
        "tower, such as /device:GPU:0"
    )


def test_a_tower_that_is_no_device_is_refused() -> None:
    with pytest.raises(InputError, match="is not part of a device name"):
        UpdateOpsRun(tower="the first")


@pytest.mark.parametrize(
    "train",
    [
        pytest.param(
            [
                host("updates", "NoOp", "^tower_0/update", "^tower_1/update"),
                host("train", "NoOp", "^update/w", "^updates"),
            ],
            id="in a group",
        ),
        pytest.param(
            [
                on(0, "tower_0/loss", "Mean", "tower_0/w/MatMul", "^tower_0/update"),
                on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_1/update"),
            ],
            id="by control dependencies of the losses",
        ),
        pytest.param(
            [
                host(
                    "update/w",
                    "ResourceApplyGradientDescent",
                    "w",
                    "rate",
                    "mean/w",
                    "^tower_0/update",
                    "^tower_1/update",
                )
            ],
            id="by control dependencies of the update",
        ),
    ],
)
def test_every_way_into_the_step(train: Sequence[Op]) -> None:
    assert objects(with_means(ops=train)) == []


def test_an_op_of_the_collection_that_assigns_nothing(snapshot: SnapshotAssertion) -> None:
    graph = program(
        host("both", "NoOp", "^tower_0/x", "^tower_1/x"), step={"update_ops": ["both"]}
    )

    (finding,) = UpdateOpsRun().judge(graph).findings

    assert messages(finding) == snapshot


def test_an_op_of_the_collection_that_the_graph_lacks(snapshot: SnapshotAssertion) -> None:
    verdict = UpdateOpsRun().judge(program(step={"update_ops": ["gone"]}))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_an_update_by_reference() -> None:
    graph = with_means(collected=False, ops=[variable("mean", "VariableV2")])

    assert objects(graph) == ["tower_0/update", "tower_1/update"]


def test_the_variables_of_a_metric_are_not_the_programs(snapshot: SnapshotAssertion) -> None:
    """They are local variables, in no collection of the program."""
    names = {TRAINABLE: ("w",), GLOBAL: ("w", "step")}

    verdict = UpdateOpsRun().judge(with_means(collected=False, collections=names))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_statistics_in_the_collection_of_variables_are_the_programs() -> None:
    names = {TRAINABLE: ("w",), GLOBAL: ("w", "step", "mean")}

    graph = with_means(0, collected=False, collections=names)

    assert objects(graph, tower="all") == ["tower_1/update"]


def aside(*ops: Op, **more: Any) -> Placement:
    """A variable outside of the model, and ops that are not part of the step."""
    return program(variable("v"), *ops, **more)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(aside(host("set", "AssignVariableOp", "v", "zeros")), id="an initializer"),
        pytest.param(
            aside(host("loaded", "RestoreV2"), host("set", "AssignVariableOp", "v", "loaded")),
            id="a restore",
        ),
        pytest.param(
            aside(
                host("value", "ReadVariableOp", "w"),
                host("set", "AssignVariableOp", "v", "value"),
            ),
            id="a copy of weights",
        ),
        pytest.param(
            aside(host("add", "AssignAddVariableOp", "v", gradient(0))), id="a sum of gradients"
        ),
        pytest.param(
            aside(host("add", "AssignAddVariableOp", "v", "mean/w")), id="a sum of averages"
        ),
        pytest.param(
            program(host("set", "AssignVariableOp", "w", "tower_0/w/MatMul")),
            id="a trained variable",
        ),
        pytest.param(
            aside(
                on(0, "value", "ReadVariableOp", "v"),
                on(0, "next", "AddV2", "value", "one"),
                on(0, "set", "AssignVariableOp", "v", "next"),
            ),
            id="a counter on a tower's GPU",
        ),
    ],
)
def test_silent_on_other_assignments(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = UpdateOpsRun().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("inputs", [("handle", "tower_0/x"), ("tower_0/x",), ()])
def test_an_assignment_to_an_unknown_variable_is_no_update(
    inputs: Sequence[str], snapshot: SnapshotAssertion
) -> None:
    """The variable's handle is an argument of a function."""
    graph = program(host("handle", "Placeholder"), host("set", "AssignVariableOp", *inputs))

    verdict = UpdateOpsRun().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_an_update_may_be_computed_on_the_towers_gpu() -> None:
    """This batch normalization opens no device scope for the host."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/mean", "ReadVariableOp", "mean"),
            on(i, f"tower_{i}/away", "Sub", f"tower_{i}/mean", f"tower_{i}/moments"),
            on(i, f"tower_{i}/update", "AssignSubVariableOp", "mean", f"tower_{i}/away"),
        ]

    assert objects(with_means(1, collected=False, ops=ops), tower="all") == ["tower_0/update"]


def test_an_update_in_no_collection_is_found_by_its_value() -> None:
    graph = program(
        variable("v"),
        on(1, "tower_1/spread", "Mean", "tower_1/w/MatMul"),
        host("set", "AssignVariableOp", "v", "tower_1/spread"),
    )

    assert objects(graph) == ["set"]


def test_the_step_may_be_the_optimizers_train_op() -> None:
    graph = with_means(0, 1, step={"train_op": (), "train_ops": ("train",)})

    assert UpdateOpsRun().judge(graph).state == "kept"


def test_a_group_around_the_optimizers_train_op_is_the_step() -> None:
    """The collection TRAIN_OP has the optimizer's op; the program runs a group around it."""
    graph = with_means(
        ops=[host("step_and_updates", "NoOp", "^train", "^tower_0/update", "^tower_1/update")],
        step={"train_op": (), "train_ops": ("train",)},
    )

    assert UpdateOpsRun().judge(graph).state == "kept"


def test_needs_no_placer() -> None:
    graph = with_means(placer=None, assigned=Missing("no wheel"), machine=None)

    assert objects(graph) == ["tower_0/update", "tower_1/update"]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(
            with_means(requested=Missing("a log lacks requested devices")),
            id="log",
        ),
        pytest.param(program(), id="no statistics"),
        pytest.param(program(gpus=[]), id="no tower"),
        pytest.param(with_means(step={"train_op": ()}), id="no train op"),
        pytest.param(
            with_means(
                ops=[host("other", "NoOp", "^update/w")],
                step={"train_op": (), "train_ops": ("train", "other")},
            ),
            id="two train ops",
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = UpdateOpsRun().judge(graph)

    assert verdict == Verdict("update-ops-run", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("allow", ["tower_0/update", "*/update"])
def test_updates_that_run_separately_on_purpose(allow: str) -> None:
    graph = with_means()

    assert UpdateOpsRun(allow=(allow, "tower_1/*")).judge(graph).state != "broken"
    assert objects(graph, allow=("another", "tower_1/*")) == ["tower_0/update"]


def assigned(*ops: Op, to: str = "v") -> Placement:
    """A variable that an op outside of the step sets to a value that some ops compute."""
    return program(
        variable(to),
        host("rows", "Placeholder"),
        *ops,
        host("set", "AssignVariableOp", to, "new"),
    )


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([on(0, "new", "L2Loss", "tower_0/w/read")], id="of weights alone"),
        pytest.param([host("new", "Sum", "rows")], id="of examples that no tower computes with"),
        pytest.param(
            [
                host("norm", "L2Loss", gradient(0)),
                host("mean", "Mean", "tower_0/w/MatMul"),
                host("new", "RealDiv", "mean", "norm"),
            ],
            id="of gradients and activations",
        ),
        pytest.param(
            [on(0, "seen", "ReadVariableOp", "v"), on(0, "new", "AddV2", "seen", "rows")],
            id="a count of examples, kept on a tower's GPU",
        ),
    ],
)
def test_an_assignment_that_is_no_statistic_of_a_tower(
    ops: Sequence[Op], snapshot: SnapshotAssertion
) -> None:
    verdict = UpdateOpsRun().judge(assigned(*ops))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_an_update_by_both_towers_must_run_for_either() -> None:
    both = host("new", "AddN", "tower_0/w/MatMul", "tower_1/w/MatMul")

    assert objects(assigned(both), tower="/gpu:0") == ["set"]
    assert objects(assigned(both), tower="/gpu:1") == ["set"]


def test_three_of_many_train_ops_are_named() -> None:
    names = [f"train_{letter}" for letter in "abcd"]
    graph = with_means(
        gpus=[0], ops=[host(name, "NoOp") for name in names], step={"train_op": names}
    )

    (finding,) = UpdateOpsRun().judge(graph).findings

    assert finding.expected == "part of 'train_a' and 'train_b' and 'train_c'"


@pytest.mark.parametrize(
    ("runs", "note"),
    [
        ((0,), "the step runs the updates of the tower on /device:GPU:0 (copy 1) alone; "),
        ((0, 1), "the step runs 2 of 2 updates"),
        ((1,), "the step runs the updates of the tower on /device:GPU:0 (copy 2) alone; "),
        ((), ""),
    ],
)
def test_towers_on_one_gpu_are_distinguished(runs: Sequence[int], note: str) -> None:
    verdict = UpdateOpsRun().judge(with_means(*runs, gpus=(0, 0), machine="gpu*2"))

    assert verdict.state == ("kept" if runs else "broken")
    assert (verdict.note or "").startswith(note)


def with_evaluation(*runs: str) -> Placement:
    """Towers, and a copy for evaluation on another GPU, with updates that the step may run."""
    return with_means(
        ops=[
            on(2, "held_out", "Placeholder"),
            on(2, "predicted", "MatMul", "held_out", "w"),
            on(2, "eval/moments", "Mean", "predicted"),
            host("eval/away", "Sub", "mean", "eval/moments"),
            host("eval/update", "AssignSubVariableOp", "mean", "eval/away"),
            host("train", "NoOp", "^update/w", "^step/add", *(f"^{name}" for name in runs)),
        ],
        step={"update_ops": ["tower_0/update", "tower_1/update", "eval/update"]},
        machine="gpu*3",
    )


def test_updates_of_evaluation_must_not_run_in_the_step() -> None:
    graph = with_evaluation("tower_0/update", "tower_1/update", "eval/update")

    (finding,) = UpdateOpsRun().judge(graph).findings

    assert finding.object == "eval/update"
    assert finding.expected == "not part of the step"
    assert UpdateOpsRun(allow=("eval/*",)).judge(graph).state == "kept"


def test_updates_of_evaluation_that_do_not_run_are_not_missed() -> None:
    verdict = UpdateOpsRun().judge(with_evaluation("tower_0/update", "tower_1/update"))

    assert verdict.state == "kept"
    assert verdict.note == "the step runs 2 of 2 updates"
