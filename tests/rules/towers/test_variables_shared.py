from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support import towers
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import gradient, host, on
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE, StepOps
from placement_checks.rules.towers.variables_shared import VariablesShared


def variables(*names: str, **more: Any) -> list[Op]:
    return [op(name, "VarHandleOp", "/cpu:0", "CPU:0", **more) for name in names]


def tower(number: int, *reads: str, after: str = "images") -> list[Op]:
    """A MatMul with each variable on one GPU; the last op is named after the tower's number."""
    gpu = f"/gpu:{number}"
    ops = []
    for depth, variable in enumerate(reads):
        name = f"matmul{number}_{depth}"
        ops += [
            op(f"read{number}_{depth}", "ReadVariableOp", gpu, gpu, variable),
            op(name, "MatMul", gpu, gpu, after, f"read{number}_{depth}"),
        ]
        after = name
    return ops


def collections(
    trainable: str | Sequence[str], slots: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    return {TRAINABLE: tuple(trainable), GLOBAL: (*trainable, *slots)}


NOT_BUILT = Missing("the program was not also built for one GPU")


def program(*ops: Op, single_gpu: Placement | Missing = NOT_BUILT, **more: Any) -> Evidence:
    """Evidence on a program, and on its build for one GPU if there is one."""
    return Evidence(placement(*ops, **more), single_gpu=single_gpu)


def objects(graph: Evidence, **parameters: Any) -> list[str]:
    return [finding.object for finding in VariablesShared(**parameters).judge(graph).findings]


def test_kept_by_data_flow(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w"),
        *tower(0, "w"),
        *tower(1, "w"),
        single_gpu=Missing("the builder has no argument num_gpus"),
    )
    verdict = VariablesShared().judge(graph)

    assert verdict == Verdict(
        "variables-shared",
        "kept",
        "requested",
        findings=[],
        note=ANY,
    )
    assert messages(verdict) == snapshot


def test_broken_by_data_flow(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w", "w_1"),
        *tower(0, "w"),
        *tower(1, "w_1"),
        collections=collections(["w", "w_1"]),
        single_gpu=Missing("the builder has no argument num_gpus"),
        lines={"w_1": "main.py:30 net.py:3"},
    )
    verdict = VariablesShared().judge(graph)
    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="w_1",
            op="VarHandleOp",
            evidence="requested",
            expected="w, which the tower on /device:GPU:0 reads",
            found="another variable in the tower on /device:GPU:1",
            frames=("main.py:30", "net.py:3"),
            at="net.py:3",
            path=("w -> matmul0_0 (/device:GPU:0)", "w_1 -> matmul1_0 (/device:GPU:1)"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_copies_are_paired_in_the_order_of_creation_without_shared_ones() -> None:
    graph = program(
        *variables("shared", "a", "b", "a_1", "b_1"),
        *tower(0, "b", "shared", "a"),
        *tower(1, "b_1", "shared", "a_1"),
    )
    assert [
        (finding.object, finding.expected.split(",")[0])
        for finding in VariablesShared().judge(graph).findings
    ] == [("a_1", "a"), ("b_1", "b")]


def test_every_tower_with_variables_of_its_own_is_found() -> None:
    graph = program(
        *variables("w", "w_1", "w_2"),
        *tower(0, "w"),
        *tower(1, "w_1"),
        *tower(2, "w_2"),
        machine="gpu*3",
    )
    assert objects(graph) == ["w_1", "w_2"]


def test_tower_that_reads_both_has_no_copy() -> None:
    """The third tower reads the first tower's variable, so its own variable is not a copy."""
    graph = program(
        *variables("w", "w_1", "extra"), *tower(0, "w"), *tower(1, "w_1"), *tower(2, "w", "extra")
    )
    assert objects(graph) == ["w_1"]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(
            placement(*variables("w", "v"), *tower(0, "w"), *tower(1, "v"), shapes={"v": (9,)}),
            id="variables of other shapes",
        ),
        pytest.param(
            placement(
                *variables("w", "bias"),
                *tower(0, "w"),
                op("add", "BiasAdd", "/gpu:1", "GPU:1", "images", "bias"),
            ),
            id="variables of another use",
        ),
        pytest.param(
            placement(*variables("w", "v"), *tower(0, "w"), *tower(1, "v", after="matmul0_0")),
            id="one model on two GPUs",
        ),
        pytest.param(
            placement(*variables("w", "v"), *tower(1, "w"), *tower(0, "v", after="matmul1_0")),
            id="one model on two GPUs, the last one first",
        ),
        pytest.param(
            placement(
                *variables("w", "step"),
                *tower(0, "w"),
                *tower(1, "w"),
                op("add", "AssignAddVariableOp", "/gpu:1", "GPU:1", "step", "one"),
            ),
            id="variable that is written and not read",
        ),
    ],
)
def test_silent(graph: Evidence) -> None:
    assert VariablesShared().judge(graph).state == "kept"


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(
            [
                op("shape", "Shape", "/gpu:0", "GPU:0", "matmul0_0"),
                op("batch", "Reshape", "/gpu:1", "GPU:1", "images", "shape", "^matmul0_0"),
            ],
            id="a shape and a control edge",
        ),
        pytest.param(
            [op("batch", "Mul", "/gpu:0", "GPU:0", "images", "shared")],
            id="the value of a variable that both read",
        ),
        pytest.param(
            [
                op("batch", "Identity", "/gpu:1", "GPU:1", "images"),
                op("report", "Mul", "/cpu:0", "CPU:0", "matmul1_0", "w"),
            ],
            id="what the host computes of both",
        ),
    ],
)
def test_towers_are_not_parts_of_one_model(between: Sequence[Op]) -> None:
    graph = program(
        *variables("shared", "w", "w_1"),
        *tower(0, "w", "shared"),
        *between,
        *tower(1, "w_1", "shared", after="batch"),
    )
    assert objects(graph) == ["w_1"]


def alone(*ops: Op, trainable: Sequence[str] = ("w",), slots: tuple[Any, ...] = ()) -> Placement:
    """The same program with one tower, by default with the variable w only."""
    return placement(
        *(ops or (*variables("w"), *tower(0, "w"))),
        machine="gpu*1",
        collections=collections(trainable, slots),
    )


def test_kept_by_collections(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w"),
        *tower(0, "w"),
        *tower(1, "w"),
        collections=collections(["w"]),
        single_gpu=alone(),
    )
    verdict = VariablesShared().judge(graph)
    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("kind", "found"), [("AssignAddVariableOp", []), ("AssignSubVariableOp", ["shown0", "shown1"])]
)
def test_each_tower_may_have_its_own_metrics(kind: str, found: Sequence[str]) -> None:
    """A tower may not have its own moving average."""
    adds = [on(i, f"tower_{i}/add", kind, f"shown{i}", f"tower_{i}/w/MatMul") for i in (0, 1)]
    graph = Evidence(
        towers.accumulating(*adds, collections=collections(["w"], ["shown0", "shown1"])),
        single_gpu=alone(),
    )

    assert objects(graph) == found


def test_the_note_on_a_log_of_a_machine_without_gpus() -> None:
    """The log's machine does not show for how many GPUs the program was built."""
    graph = program(
        *variables("w"),
        *tower(0, "w"),
        *tower(1, "w"),
        collections=collections(["w"]),
        single_gpu=alone(),
        placer="log",
        machine="cpu*1",
    )

    assert VariablesShared().judge(graph).note == (
        "1 trainable and 1 global variable with 1 tower and with several towers"
    )


def test_broken_by_collections(snapshot: SnapshotAssertion) -> None:
    """Data flow finds no pair here: another op reads the added variable."""
    graph = program(
        *variables("w", "gate"),
        *tower(0, "w"),
        *tower(1, "w"),
        op("gated", "Mul", "/gpu:1", "GPU:1", "matmul1_0", "gate"),
        collections=collections(["w"], ["gate"]),
        single_gpu=alone(),
        lines={"gate": "main.py:7"},
    )
    verdict = VariablesShared().judge(graph)
    assert verdict.findings == [
        Finding(
            object="gate",
            op="VarHandleOp",
            evidence="requested",
            expected="the variables of the program with one tower",
            found="an additional variable with 2 GPUs",
            frames=("main.py:7",),
            at="main.py:7",
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_variable_that_no_tower_reads_counts_too(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w", "best"),
        *tower(0, "w"),
        *tower(1, "w"),
        collections=collections(["w"], ["best"]),
        single_gpu=alone(),
    )
    (finding,) = VariablesShared().judge(graph).findings
    assert messages(finding) == snapshot


def test_copy_is_found_once_with_both_ways(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w", "w_1"),
        *tower(0, "w"),
        *tower(1, "w_1"),
        collections=collections(["w", "w_1"]),
        single_gpu=alone(),
    )
    (finding,) = VariablesShared().judge(graph).findings
    assert messages(finding) == snapshot


def test_copy_is_paired_though_its_tower_takes_from_the_other_one(
    snapshot: SnapshotAssertion,
) -> None:
    """The build for one tower shows that w_1 is not a part of the model."""
    graph = program(
        *variables("w", "w_1"),
        *tower(0, "w"),
        *tower(1, "w_1", after="matmul0_0"),
        collections=collections(["w", "w_1"]),
        single_gpu=alone(),
    )
    (finding,) = VariablesShared().judge(graph).findings
    assert messages(finding) == snapshot


def test_variables_of_the_build_for_one_tower_are_no_copies() -> None:
    """A model of two parts; a single GPU holds both."""
    graph = program(
        *variables("w", "v"),
        *tower(0, "w"),
        *tower(1, "v"),
        collections=collections(["w", "v"]),
        single_gpu=alone(*variables("w", "v"), *tower(0, "w", "v"), trainable=["w", "v"]),
    )
    assert objects(graph) == []


def test_renamed_variables_are_not_added() -> None:
    graph = program(
        *variables("tower_0/w"),
        *tower(0, "tower_0/w"),
        *tower(1, "tower_0/w"),
        collections=collections(["tower_0/w"]),
        single_gpu=alone(),
    )
    assert objects(graph) == []


def test_each_missing_name_matches_one_added_name() -> None:
    graph = program(
        *variables("a", "b"),
        *tower(0, "a", "b"),
        *tower(1, "a", "b"),
        collections=collections(["a", "b"]),
        single_gpu=alone(),
    )
    assert objects(graph) == ["b"]


def test_a_variable_of_another_shape_does_not_match_a_missing_one() -> None:
    graph = program(
        *variables("v"),
        *tower(0, "v"),
        *tower(1, "v"),
        shapes={"v": (9,)},
        collections=collections(["v"]),
        single_gpu=alone(),
    )
    assert objects(graph) == ["v"]


@pytest.mark.parametrize(
    "slot",
    [
        pytest.param(
            [
                *variables("slot"),
                op("step", "ResourceApplyAdam", "/cpu:0", "CPU:0", "w_1", "slot", "gradient"),
            ],
            id="by its update op",
        ),
        pytest.param(variables("slot", colocated=["w_1"]), id="by colocation"),
    ],
)
@pytest.mark.parametrize(
    "towers",
    [
        pytest.param([*tower(0, "w"), *tower(1, "w_1")], id="doubled"),
        pytest.param([*tower(0, "w", "w_1"), *tower(1, "w", "w_1")], id="added"),
    ],
)
def test_slot_of_a_reported_variable_is_no_finding(
    slot: Sequence[Op], towers: Sequence[Op]
) -> None:
    graph = program(
        *variables("w", "w_1"),
        *slot,
        *towers,
        collections=collections(["w", "w_1"], ["slot"]),
        single_gpu=alone(),
    )
    assert objects(graph) == ["w_1"]


def test_slot_that_is_added_without_its_variable_is_a_finding() -> None:
    graph = program(
        *variables("w", "w/Adam"),
        *tower(0, "w"),
        *tower(1, "w"),
        op("step", "ResourceApplyAdam", "/cpu:0", "CPU:0", "w", "w/Adam", "gradient"),
        collections=collections(["w"], ["w/Adam"]),
        single_gpu=alone(),
    )
    assert objects(graph) == ["w/Adam"]


@pytest.mark.parametrize(
    ("allow", "found"),
    [
        ((), ["tower_1/bn/mean", "tower_1/w"]),
        (("tower_*/bn/*",), ["tower_1/w"]),
        (("tower_1/w",), ["tower_1/bn/mean"]),
        (("tower_*",), []),
        (("TOWER_*", "w"), ["tower_1/bn/mean", "tower_1/w"]),
    ],
)
@pytest.mark.parametrize("way", ["data flow", "collections"])
def test_allowed_variables_by_patterns(
    allow: Sequence[str], found: Sequence[str], way: str
) -> None:
    names = ["bn/mean", "w"]
    both = [f"tower_{number}/{name}" for number in (0, 1) for name in names]
    single = alone(*variables(*both[:2]), *tower(0, *both[:2]), trainable=both[:2])
    graph = program(
        *variables(*both),
        *tower(0, *both[:2]),
        *(tower(1, *both[2:]) if way == "data flow" else tower(1, *both[:2])),
        collections=collections(both),
        single_gpu=NOT_BUILT if way == "data flow" else single,
    )
    assert objects(graph, allow=allow) == found


@pytest.mark.parametrize(
    "graph",
    [
        program(op("a", "NoOp", "/gpu:0", "GPU:0")),
        program(
            *variables("w"),
            *tower(1, "w"),
            single_gpu=Missing("the program itself was built for one GPU"),
        ),
        program(*variables("w"), single_gpu=Missing("the builder has no argument num_gpus")),
    ],
)
def test_not_checked(graph: Evidence, snapshot: SnapshotAssertion) -> None:
    verdict = VariablesShared().judge(graph)

    assert verdict == Verdict("variables-shared", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_needs_no_placer() -> None:
    ops = [*variables("w", "w_1"), *tower(0, "w"), *tower(1, "w_1")]
    unplaced = program(*ops, placer=None, assigned=Missing("no wheel for this"), machine=None)
    assert objects(unplaced) == ["w_1"]


def test_a_build_for_one_gpu_with_as_many_towers_is_ignored(
    snapshot: SnapshotAssertion,
) -> None:
    """The builder takes num_gpus and ignores it."""
    ops = [*variables("w", "w_1"), *tower(0, "w"), *tower(1, "w_1")]
    graph = program(*ops, single_gpu=placement(*ops))

    verdict = VariablesShared().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["w_1"]
    assert messages(verdict) == snapshot


def test_two_spellings_of_one_gpu_are_one_tower(snapshot: SnapshotAssertion) -> None:
    spelled_out = "/job:localhost/replica:0/task:0/device:GPU:0"
    graph = program(
        *variables("v", "w"),
        *tower(0, "v"),
        op("other", "MatMul", spelled_out, "GPU:0", "w"),
    )

    verdict = VariablesShared().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_parts_of_a_tower_on_two_gpus_are_paired_with_the_first_tower(
    snapshot: SnapshotAssertion,
) -> None:
    names = [f"{tower}/{part}" for tower in ("one", "two") for part in ("a", "b")]
    graph = program(
        *variables(*names),
        *tower(0, "one/a"),
        *tower(1, "one/b", after="matmul0_0"),
        *tower(2, "two/a"),
        *tower(3, "two/b", after="matmul2_0"),
        machine="gpu*4",
    )

    verdict = VariablesShared().judge(graph)

    assert [(finding.object, finding.expected) for finding in verdict.findings] == [
        ("two/a", "one/a, which the tower on /device:GPU:0 reads"),
        ("two/b", "one/b, which the tower on /device:GPU:1 reads"),
    ]
    assert messages(verdict) == snapshot


def test_a_moving_average_on_one_gpu_is_no_copy_of_its_variable_on_another() -> None:
    """One GPU trains, and the other evaluates with the averages."""
    graph = program(
        *variables("w", "w/average"),
        *tower(0, "w"),
        *tower(1, "w/average"),
        collections=collections(["w"], ["w/average"]),
    )

    assert objects(graph) == []


def test_variables_outside_the_collections_are_the_towers_own() -> None:
    """The counters of a metric are local variables."""
    graph = program(
        *variables("w", "metric", "metric_1"),
        *tower(0, "w", "metric"),
        *tower(1, "w", "metric_1"),
        collections=collections(["w"]),
    )

    assert objects(graph) == []


def test_statistics_are_separate_but_not_trained(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w", "mean", "mean_1"),
        *tower(0, "w", "mean"),
        *tower(1, "w", "mean_1"),
        collections=collections(["w"], ["mean", "mean_1"]),
    )

    (finding,) = VariablesShared().judge(graph).findings

    assert messages(finding) == snapshot


def test_empty_collections_are_ignored(snapshot: SnapshotAssertion) -> None:
    ops = [*variables("w"), *tower(0, "w")]
    empty = collections([])
    graph = program(*ops, collections=empty, single_gpu=placement(*ops, collections=empty))

    verdict = VariablesShared().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_not_checked_with_the_reason_of_a_log(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w"), *tower(0, "w"), requested=Missing("a log lacks requested devices")
    )

    verdict = VariablesShared().judge(graph)

    assert verdict == Verdict("variables-shared", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_a_trained_variable_that_is_not_global_is_not_saved(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w", "v"),
        *tower(0, "w", "v"),
        *tower(1, "w", "v"),
        collections={TRAINABLE: ("w", "v", "gone"), GLOBAL: ("v",)},
        lines={"w": "main.py:9 net.py:3"},
    )

    verdict = VariablesShared().judge(graph)

    first, gone = verdict.findings
    assert first == Finding(
        object="w",
        op="VarHandleOp",
        evidence="requested",
        expected="in TRAINABLE_VARIABLES and in GLOBAL_VARIABLES",
        found="in TRAINABLE_VARIABLES only",
        frames=("main.py:9", "net.py:3"),
        message=ANY,
        fix=ANY,
    )
    assert (gone.object, gone.op) == ("gone", "")
    assert messages(verdict) == snapshot


def test_one_tower_is_enough_to_see_that_a_variable_is_not_saved() -> None:
    graph = program(*variables("w"), *tower(0, "w"), collections={TRAINABLE: ("w",), GLOBAL: ()})

    assert objects(graph) == ["w"]


def test_gpus_with_parts_of_one_model_are_in_the_note(snapshot: SnapshotAssertion) -> None:
    graph = program(
        *variables("w", "v"),
        *tower(0, "w"),
        *tower(1, "v", after="matmul0_0"),
        single_gpu=Missing("the builder has no argument num_gpus"),
    )

    verdict = VariablesShared().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_name_outside_the_collections_matches_no_added_name() -> None:
    """The new variable does not replace a metric of the program for one GPU."""
    alone = placement(
        *variables("w", "metric"), *tower(0, "w"), collections=collections(["w"]), machine="gpu*1"
    )
    graph = program(
        *variables("w", "more"),
        *tower(0, "w"),
        *tower(1, "w"),
        collections=collections(["w", "more"]),
        single_gpu=alone,
    )

    assert objects(graph) == ["more"]


def test_a_build_for_one_gpu_with_as_many_towers_hides_no_copies_by_its_collections(
    snapshot: SnapshotAssertion,
) -> None:
    ops = [*variables("w", "w_1"), *tower(0, "w"), *tower(1, "w_1")]
    names = collections(["w", "w_1"])

    verdict = VariablesShared().judge(
        program(*ops, collections=names, single_gpu=placement(*ops, collections=names))
    )

    assert [finding.object for finding in verdict.findings] == ["w_1"]
    assert messages(verdict) == snapshot


def test_a_collection_of_the_two_is_enough(snapshot: SnapshotAssertion) -> None:
    """All weights are frozen."""
    graph = program(
        *variables("w", "w_1"),
        *tower(0, "w"),
        *tower(1, "w_1"),
        collections=collections([], slots=["w", "w_1"]),
        single_gpu=placement(
            *variables("w"), *tower(0, "w"), collections=collections([], ["w"]), machine="gpu*1"
        ),
    )

    verdict = VariablesShared().judge(graph)

    assert verdict.state == "broken"
    assert messages(verdict) == snapshot


def test_not_checked_with_one_tower_and_no_collections(snapshot: SnapshotAssertion) -> None:
    ops = [*variables("w"), *tower(0, "w")]

    verdict = VariablesShared().judge(program(*ops, single_gpu=placement(*ops)))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_the_copy_is_the_later_towers_whichever_was_made_first() -> None:
    graph = program(*variables("second", "first"), *tower(0, "first"), *tower(1, "second"))

    assert objects(graph) == ["second"]


def split(*, single_gpu: Placement | Missing = NOT_BUILT) -> Evidence:
    """Two towers of two GPUs each, with separate variables."""
    return program(
        *variables("a", "b", "a_1", "b_1"),
        *tower(0, "a"),
        *tower(1, "b", after="matmul0_0"),
        *tower(2, "a_1"),
        *tower(3, "b_1", after="matmul2_0"),
        collections=collections(["a", "b", "a_1", "b_1"]),
        machine="gpu*4",
        single_gpu=single_gpu,
    )


@pytest.mark.parametrize("informed", [True, False])
def test_parts_of_split_towers_are_paired_with_the_first_tower(
    informed: bool, snapshot: SnapshotAssertion
) -> None:
    alone = placement(
        *variables("a", "b"), *tower(0, "a", "b"), collections=collections("ab"), machine="gpu*1"
    )
    verdict = VariablesShared().judge(split(single_gpu=alone if informed else NOT_BUILT))

    assert [
        (finding.object, finding.expected.partition(",")[0]) for finding in verdict.findings
    ] == [
        ("a_1", "a"),
        ("b_1", "b"),
    ]
    assert messages(verdict) == snapshot


def test_a_tower_of_more_parts_than_the_first_has() -> None:
    graph = program(
        *variables("a", "b", "a_1", "b_1"),
        *tower(0, "a", "b"),
        *tower(1, "a_1"),
        *tower(2, "b_1", after="matmul1_0"),
        machine="gpu*3",
    )

    assert objects(graph) == ["a_1", "b_1"]


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        ("gpu*2", "an additional variable with 2 GPUs"),
        ("cpu*1", "an additional variable"),
        (None, "an additional variable"),
    ],
)
def test_the_finding_on_a_variable_that_is_added_for_all_towers(
    machine: str | None, found: str, snapshot: SnapshotAssertion
) -> None:
    graph = program(
        *variables("w", "more"),
        *tower(0, "w", "more"),
        *tower(1, "w", "more"),
        collections=collections(["w", "more"]),
        single_gpu=placement(
            *variables("w"), *tower(0, "w"), collections=collections(["w"]), machine="gpu*1"
        ),
        machine=machine,
    )
    verdict = VariablesShared().judge(graph)

    (finding,) = verdict.findings
    assert finding.found == found
    assert messages(verdict) == snapshot


def test_one_gpu_that_reads_is_enough_where_the_collections_grow() -> None:
    """The second tower was built on the first tower's GPU."""
    graph = program(
        *variables("w", "w_1"),
        *tower(0, "w", "w_1"),
        collections=collections(["w", "w_1"]),
        single_gpu=placement(
            *variables("w"), *tower(0, "w"), collections=collections(["w"]), machine="gpu*1"
        ),
    )

    assert objects(graph) == ["w_1"]


def named(*names: str, **more: Any) -> Evidence:
    """Two towers that each have half of the variables; get_variable makes some of them."""
    half = len(names) // 2
    lines = dict.fromkeys(names, "main.py:20 net.py:5 net.py:1")
    return program(
        *variables(*names, "shared"),
        *(op(f"{name}/Initializer/zeros", "Const") for name in names if "/" in name),
        *tower(0, *names[:half], "shared"),
        *tower(1, *names[half:], "shared"),
        lines={**lines, "shared": "main.py:10"},
        **more,
    )


@pytest.mark.parametrize(
    ("names", "at"),
    [
        pytest.param(["w", "w_1"], "net.py:1", id="tf.Variable never shares"),
        pytest.param(["tower_0/w", "tower_1/w"], "main.py:20", id="a scope named after towers"),
        pytest.param(["net/dense/w", "net/dense_1/w"], "main.py:20", id="a layer built again"),
        pytest.param(
            ["net/dense_1/w", "net/dense_3/w"], "main.py:20", id="one of two built again"
        ),
        pytest.param(["a/b/w", "a/c/v"], "main.py:20", id="names without a hint"),
    ],
)
def test_the_line_and_the_fix_depend_on_the_cause(
    names: list[str], at: str, snapshot: SnapshotAssertion
) -> None:
    (finding,) = VariablesShared().judge(named(*names)).findings

    assert (finding.where, finding.frames[-1]) == (at, "net.py:1")
    assert messages(finding) == snapshot


def test_copies_from_one_scope_are_alike() -> None:
    names = [f"tower_{i}/{name}" for i in (0, 1) for name in ("w", "b")]

    one, other = VariablesShared().judge(named(*names)).findings

    assert one.alike is not None
    assert (one.alike, one.fix) == (other.alike, other.fix)


def test_copies_from_different_scopes_are_not_alike() -> None:
    one, other = VariablesShared().judge(named("a_0/w", "b_0/w", "a_1/w", "b_1/w")).findings

    assert one.alike != other.alike


def test_copies_that_no_step_updates_stay_as_they_are(snapshot: SnapshotAssertion) -> None:
    update = op("update", "ResourceApplyGradientDescent", "", "CPU:0", "w", "rate", "matmul0_0")
    graph = program(
        *variables("w", "w_1"),
        *tower(0, "w"),
        *tower(1, "w_1"),
        update,
        step=StepOps(train_op=("update",)),
    )

    (finding,) = VariablesShared().judge(graph).findings

    assert messages(finding) == snapshot


def own_gradient(i: int) -> Op:
    name = f"v{i}/w"
    return on(i, f"update/{name}", "ResourceApplyGradientDescent", name, "rate", gradient(i))


@pytest.mark.parametrize("collected", [True, False])
@pytest.mark.parametrize("count", [2, 3, 12])
def test_copies_that_take_one_sum_are_shared(
    count: int, collected: bool, snapshot: SnapshotAssertion
) -> None:
    """All copies but the first may be local."""
    names = [f"v{i}/w" for i in range(count)]
    graph = towers.program(
        mirrored=True,
        gpus=range(count),
        collections=collections(names) if collected else {TRAINABLE: names, GLOBAL: names[:1]},
    )
    single = placement(*variables("v0/w"), *tower(0, "v0/w"), collections=collections(["v0/w"]))

    verdict = VariablesShared().judge(Evidence(graph, single_gpu=single))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(("mirrored", "found"), [(True, []), (False, ["v1/count"])])
def test_a_variable_that_no_loss_depends_on(mirrored: bool, found: list[str]) -> None:
    """If each GPU has a copy of the model, it may also count its own steps."""
    names = ["v0/w", "v1/w"] if mirrored else ["w"]
    graph = towers.program(
        towers.variable("v0/count", at="GPU:0"),
        towers.variable("v1/count", at="GPU:1"),
        mirrored=mirrored,
        collections={TRAINABLE: names, GLOBAL: [*names, "v0/count", "v1/count"]},
    )
    single = placement(
        *variables(names[0], "v0/count"),
        *tower(0, names[0]),
        collections={TRAINABLE: names[:1], GLOBAL: [names[0], "v0/count"]},
    )

    verdict = VariablesShared().judge(Evidence(graph, single_gpu=single))

    assert [finding.object for finding in verdict.findings] == found


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(own_gradient(1), "v1/w", id="its own gradient"),
        pytest.param(own_gradient(0), "v0/w", id="the first copy its own gradient"),
        pytest.param(host("update/v2/w", "NoOp"), "v2/w", id="no update"),
        pytest.param(
            on(3, "update/v3/w", "ResourceApplyGradientDescent", "v3/w", "rate", "mean/b"),
            "v3/w",
            id="the sum of another weight",
        ),
    ],
)
def test_the_diverging_copy_of_four_is_named(
    change: Op, named: str, snapshot: SnapshotAssertion
) -> None:
    graph = towers.program(change, mirrored=True, gpus=range(4), variables=["w", "b"])

    verdict = VariablesShared().judge(graph)

    assert [finding.object for finding in verdict.findings] == [named]
    assert messages(verdict) == snapshot


def test_the_second_of_two_diverging_copies_is_named() -> None:
    graph = towers.program(own_gradient(1), mirrored=True)

    assert [each.object for each in VariablesShared().judge(graph).findings] == ["v1/w"]


def test_copies_that_drift_apart_on_purpose() -> None:
    graph = towers.program(own_gradient(1), mirrored=True, gpus=range(3))

    assert VariablesShared(allow=("v1/*",)).judge(graph).state == "kept"
