from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op
from support.snapshots import messages
from support.towers import (
    host,
    joint,
    mixed_losses,
    objects_of,
    on,
    program,
    variable,
    without_two_towers,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE, Body
from placement_checks.rules.towers.towers_alike import TowersAlike


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(TowersAlike(**parameters), graph)


def found(graph: Placement) -> list[tuple[str, ...]]:
    return [
        (finding.object, finding.expected, finding.found)
        for finding in TowersAlike().judge(graph).findings
    ]


def scaled(*factors: float, **more: Any) -> Placement:
    """Towers with losses that are multiplied by constants, the first input of the product."""
    ops = []
    for i in range(len(factors)):
        ops += [
            on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/factor", "Const"),
            on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/factor", f"tower_{i}/mean"),
        ]
    values = {f"tower_{i}/factor": factor for i, factor in enumerate(factors)}
    return program(*ops, gpus=range(len(factors)), values=values, **more)


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    graph = program(gpus=range(count))

    verdict = TowersAlike().judge(graph)

    assert verdict == Verdict("towers-alike", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = program(
        on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul"),
        lines={"tower_0/loss": "main.py:30 net.py:7", "tower_1/loss": "main.py:30 net.py:9"},
    )

    verdict = TowersAlike().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="tower_1/loss",
            op="Sum",
            evidence="requested",
            expected="Mean",
            found="Sum",
            frames=("main.py:30", "net.py:9"),
            path=("tower_1/loss (Sum) net.py:9",),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_the_first_towers_line_is_named_if_it_differs(snapshot: SnapshotAssertion) -> None:
    graph = program(
        on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul"),
        lines={"tower_0/loss": "main.py:30", "tower_1/loss": "main.py:32"},
    )

    (finding,) = TowersAlike().judge(graph).findings

    assert messages(finding) == snapshot


def test_no_line_is_named_if_it_is_unknown(snapshot: SnapshotAssertion) -> None:
    graph = program(
        on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul"), lines={"tower_1/loss": "main.py:32"}
    )

    (finding,) = TowersAlike().judge(graph).findings

    assert messages(finding) == snapshot


def test_the_path_leads_from_the_loss_to_the_place() -> None:
    graph = program(
        on(1, "tower_1/act", "Tanh", "tower_1/w/MatMul"),
        on(1, "tower_1/loss", "Mean", "tower_1/act"),
        on(0, "tower_0/act", "Relu", "tower_0/w/MatMul"),
        on(0, "tower_0/loss", "Mean", "tower_0/act"),
    )

    (finding,) = TowersAlike().judge(graph).findings

    assert (finding.object, finding.expected, finding.found) == ("tower_1/act", "Relu", "Tanh")
    assert finding.path == ("tower_1/loss (Mean)", "tower_1/act (Tanh)")


@pytest.mark.parametrize("count", [2, 3, 4, 12])
@pytest.mark.parametrize("odd", [1, -1], ids=["the second", "the last"])
def test_one_tower_of_many_differs(count: int, odd: int) -> None:
    number = range(count)[odd]
    graph = program(
        on(number, f"tower_{number}/loss", "Sum", f"tower_{number}/w/MatMul"), gpus=range(count)
    )

    assert objects(graph) == [f"tower_{number}/loss"]


def test_each_tower_is_compared_with_the_first() -> None:
    graph = program(on(0, "tower_0/loss", "Sum", "tower_0/w/MatMul"), gpus=[0, 1, 2])

    assert found(graph) == [("tower_1/loss", "Sum", "Mean"), ("tower_2/loss", "Sum", "Mean")]


def test_inputs_of_ops_that_differ_are_not_compared() -> None:
    graph = program(
        on(1, "tower_1/a/MatMul", "BatchMatMulV2", "tower_1/x", "tower_1/a/read"),
        on(1, "tower_1/b/MatMul", "Conv2D", "tower_1/a/MatMul", "tower_1/b/read"),
        variables=["a", "b"],
    )

    assert objects(graph) == ["tower_1/b/MatMul"]


def test_a_tower_that_uses_shared_weights_in_another_order_is_another_computation() -> None:
    graph = program(
        on(1, "tower_1/a/read", "ReadVariableOp", "b"),
        on(1, "tower_1/b/read", "ReadVariableOp", "a"),
        variables=["a", "b"],
    )

    assert sorted(found(graph)) == [
        ("a", "the variable b", "the variable a"),
        ("b", "the variable a", "the variable b"),
    ]


@pytest.mark.parametrize("tower", [0, 1])
def test_a_tower_with_its_own_variable_differs_from_shared_use(
    tower: int,
) -> None:
    graph = program(
        variable("own"),
        on(tower, f"tower_{tower}/b/read", "ReadVariableOp", "a"),
        on(1 - tower, f"tower_{1 - tower}/b/read", "ReadVariableOp", "own"),
        variables=["a", "b"],
    )

    assert objects(graph) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2, 2, 1), "(1, 2, 2, 1)"),
        ((b"SAME",), "SAME"),
        (tuple(range(100)), str(tuple(range(100)))[:60]),
        (1 / 3, "0.333333"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_long_attribute_is_shortened(
    value: float | bytes | Sequence[int | bytes], text: str
) -> None:
    graph = program(attributes={"tower_0/w/MatMul": {"of": value}})

    assert found(graph) == [("tower_1/w/MatMul", f"MatMul with of {text}", "MatMul with of None")]


def test_bodies_of_functions_are_compared_op_by_op() -> None:
    graph = program(
        attributes={f"tower_{i}/w/MatMul": {"f": Body(f"body of {i}")} for i in (0, 1)}
    )

    assert objects(graph) == []


def test_the_first_of_several_attributes_by_name_is_in_the_finding() -> None:
    graph = program(attributes={"tower_0/w/MatMul": dict.fromkeys("zyxabc", 1)})

    assert found(graph) == [("tower_1/w/MatMul", "MatMul with a 1", "MatMul with a None")]


@pytest.mark.parametrize("kind", ["StridedSlice", "Slice", "SplitV", "Split"])
def test_where_towers_cut_their_slices_is_no_difference(kind: str) -> None:
    """The first tower starts at 0, the others at a computed row."""
    ops = [host("batch", "Placeholder"), host("rows", "Shape", "batch")]
    for i, begin in enumerate(["Const", "Mul"]):
        of = [f"tower_{i}/begin", "batch"] if kind == "Split" else ["batch", f"tower_{i}/begin"]
        ops += [host(f"tower_{i}/begin", begin), on(i, f"tower_{i}/x", kind, *of)]

    assert objects(program(*ops)) == []


@pytest.mark.parametrize(
    ("mask", "found"),
    [("begin_mask", []), ("end_mask", []), ("shrink_axis_mask", ["tower_1/x"])],
)
def test_a_slice_from_the_beginning_or_to_the_end_is_no_difference(
    mask: str, found: Sequence[str]
) -> None:
    """The last of unequal slices goes to the end: batch[8:] after batch[:8]."""
    ops = [
        host("batch", "Placeholder"),
        *(on(i, f"tower_{i}/x", "StridedSlice", "batch", "begin") for i in (0, 1)),
    ]

    assert objects(program(*ops, attributes={"tower_1/x": {mask: 1}})) == found


@pytest.mark.parametrize("kind", ["StridedSlice", "Slice", "SplitV", "Split"])
def test_tensors_that_towers_cut_are_compared(kind: str) -> None:
    ops = []
    for i, source in enumerate(["Relu", "Tanh"]):
        of = ["axis", f"tower_{i}/from"] if kind == "Split" else [f"tower_{i}/from", "begin"]
        ops += [
            host("axis", "Const"),
            host("begin", "Const"),
            on(i, f"tower_{i}/from", source, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/part", kind, *of),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/part"),
        ]

    assert objects(program(*ops)) == ["tower_1/from"]


def test_ops_that_choose_the_rows_of_an_expert_are_compared() -> None:
    ops = []
    for i, gate in enumerate(["Relu", "Tanh"]):
        ops += [
            on(i, f"tower_{i}/gate", gate, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/rows", "DynamicPartition", f"tower_{i}/x", f"tower_{i}/gate"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/rows"),
        ]

    assert objects(program(*ops)) == ["tower_1/gate"]


def test_each_place_is_a_finding() -> None:
    ops = []
    for i, (one, other) in enumerate([("Relu", "Tanh"), ("Elu", "Sigmoid")]):
        ops += [
            on(i, f"tower_{i}/one", one, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/other", other, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/one", f"tower_{i}/other"),
        ]

    assert found(program(*ops)) == [
        ("tower_1/one", "Relu", "Elu"),
        ("tower_1/other", "Tanh", "Sigmoid"),
    ]


def test_broken_by_another_attribute() -> None:
    graph = program(
        attributes={
            "tower_0/w/MatMul": {"transpose_a": False, "transpose_b": False},
            "tower_1/w/MatMul": {"transpose_a": False, "transpose_b": True},
        }
    )

    assert found(graph) == [
        ("tower_1/w/MatMul", "MatMul with transpose_b False", "MatMul with transpose_b True")
    ]


def test_an_attribute_is_missing() -> None:
    graph = program(attributes={"tower_0/w/MatMul": {"data_format": b"NHWC"}})

    assert found(graph) == [
        ("tower_1/w/MatMul", "MatMul with data_format NHWC", "MatMul with data_format None")
    ]


@pytest.mark.parametrize(
    ("one", "other", "different"),
    [(0.5, 0.25, True), (0.5, 0.5, False), (16, 32, False)],
    ids=["decimals", "equal", "whole numbers"],
)
def test_a_constant_inside_the_loss(one: float, other: float, different: bool) -> None:
    """Integers are the sizes of slices that towers cut."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/rate", "Const"),
            on(i, f"tower_{i}/dropped", "Mul", f"tower_{i}/w/MatMul", f"tower_{i}/rate"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/dropped"),
        ]
    graph = program(*ops, values={"tower_0/rate": one, "tower_1/rate": other})

    expected = [("tower_1/rate", f"the constant {one}", f"the constant {other}")]
    assert found(graph) == (expected if different else [])


def test_a_large_constant_of_unknown_value_is_no_difference() -> None:
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/mask", "Const"),
            on(i, f"tower_{i}/masked", "Mul", f"tower_{i}/w/MatMul", f"tower_{i}/mask"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/masked"),
        ]

    assert objects(program(*ops, values={"tower_0/mask": 0.5})) == []
    assert objects(program(*ops, values={"tower_1/mask": 0.5})) == []


def test_broken_by_an_additional_term() -> None:
    graph = program(
        on(0, "tower_0/loss", "AddN", "tower_0/w/MatMul"),
        on(1, "tower_1/l2", "L2Loss", "tower_1/w/MatMul"),
        on(1, "tower_1/loss", "AddN", "tower_1/w/MatMul", "tower_1/l2"),
    )

    assert found(graph) == [("tower_1/loss", "AddN of 1 input", "AddN of 2 inputs")]


def test_separate_variables_must_have_one_shape() -> None:
    graph = program(
        variable("v"),
        on(1, "tower_1/w/read", "ReadVariableOp", "v"),
        shapes={"w": (8, 4), "v": (8, 5)},
    )

    assert found(graph) == [("v", "a variable of float32 [8, 4]", "a variable of float32 [8, 5]")]


def test_a_variable_of_any_shape_is_another_than_one_of_some() -> None:
    graph = program(
        variable("v"),
        on(1, "tower_1/w/read", "ReadVariableOp", "v"),
        shapes={"w": (8, 4), "v": None},
    )

    assert found(graph) == [
        ("v", "a variable of float32 [8, 4]", "a variable of float32 any shape")
    ]


def test_separate_variables_of_one_shape_are_alike() -> None:
    graph = program(variable("v"), on(1, "tower_1/w/read", "ReadVariableOp", "v"))

    assert objects(graph) == []


@pytest.mark.parametrize(
    "attribute", ["seed", "seed2", "shared_name", "container", "shape", "debug_name", "frame_name"]
)
def test_names_and_seeds_of_ops_are_no_difference(attribute: str) -> None:
    graph = program(
        attributes={"tower_0/w/MatMul": {attribute: 1}, "tower_1/w/MatMul": {attribute: 2}}
    )

    assert TowersAlike().judge(graph).state == "kept"


@pytest.mark.parametrize("kind", ["Add", "AddV2", "AddN", "AccumulateNV2"])
@pytest.mark.parametrize(
    "source",
    [
        "Placeholder",
        "PlaceholderWithDefault",
        "IteratorGetNext",
        "IteratorGetNextSync",
        "MultiDeviceIteratorGetNextFromShard",
        "QueueDequeueManyV2",
        "ReaderReadV2",
        "Unstage",
    ],
)
def test_a_penalty_that_one_tower_adds_for_all_is_no_difference(kind: str, source: str) -> None:
    graph = program(
        *(on(i, f"tower_{i}/x", source) for i in (0, 1)),
        on(0, "tower_0/mean", "Mean", "tower_0/w/MatMul"),
        on(0, "tower_0/penalty", "L2Loss", "tower_0/w/read"),
        on(0, "tower_0/loss", kind, "tower_0/mean", "tower_0/penalty"),
    )

    assert objects(graph) == []


def test_a_term_on_cached_examples_is_no_penalty() -> None:
    """Cached examples are variables that are neither trained nor saved."""
    ops = [
        variable("images"),
        variable("pixels"),
        *(
            on(i, f"tower_{i}/w/MatMul", "MatMul", source, f"tower_{i}/w/read")
            for i, source in enumerate(["images", "pixels"])
        ),
        on(0, "tower_0/mean", "Mean", "tower_0/w/MatMul"),
        on(0, "tower_0/penalty", "L2Loss", "tower_0/w/read"),
        on(0, "tower_0/loss", "AddV2", "tower_0/mean", "tower_0/penalty"),
    ]
    graph = program(*ops, collections={TRAINABLE: ["w"], GLOBAL: ["w", "step"]})

    assert objects(program(*ops)) == ["tower_1/loss"]
    assert objects(graph) == []


def test_penalties_that_are_added_one_after_the_other_are_no_difference() -> None:
    graph = program(
        on(1, "tower_1/mean", "Mean", "tower_1/w/MatMul"),
        *(on(1, f"tower_1/{name}", "L2Loss", "tower_1/w/read") for name in ("l2", "other")),
        on(1, "tower_1/one", "AddV2", "tower_1/l2", "tower_1/mean"),
        on(1, "tower_1/loss", "AddV2", "tower_1/one", "tower_1/other"),
    )

    assert objects(graph) == []


def penalized_within(*changes: Op, kind: str = "Mul", penalties: int = 1) -> Placement:
    """Towers that scale their losses; the first ``penalties`` towers add a penalty before."""
    ops = []
    for i in (0, 1):
        total = f"tower_{i}/total" if i < penalties else f"tower_{i}/mean"
        ops += [
            on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/penalty", "L2Loss", f"tower_{i}/w/read"),
            on(i, f"tower_{i}/total", "AddV2", f"tower_{i}/penalty", f"tower_{i}/mean"),
            on(i, f"tower_{i}/scaled", kind, total, f"tower_{i}/factor"),
            on(i, f"tower_{i}/factor", "Const"),
            on(i, f"tower_{i}/loss", "Identity", f"tower_{i}/scaled"),
        ]
    return program(*ops, *changes, values={"tower_0/factor": 0.25, "tower_1/factor": 0.75})


@pytest.mark.parametrize("kind", ["Mul", "RealDiv"])
@pytest.mark.parametrize("penalties", [0, 1, 2])
def test_a_penalty_may_be_added_before_the_whole_is_scaled(kind: str, penalties: int) -> None:
    assert objects(penalized_within(kind=kind, penalties=penalties)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            on(1, "tower_1/mean", "Sum", "tower_1/w/MatMul"),
            [("tower_1/mean", "Mean", "Sum")],
            id="the loss within",
        ),
        pytest.param(
            on(1, "tower_1/factor", "Sqrt", "share"),
            [("tower_1/factor", "Const", "Sqrt")],
            id="the factor",
        ),
        pytest.param(
            on(1, "tower_1/scaled", "Maximum", "tower_1/mean", "tower_1/factor"),
            [("tower_1/scaled", "Mul", "Maximum")],
            id="what is done with the loss within",
        ),
        pytest.param(
            on(0, "tower_0/penalty", "Mean", "tower_0/x"),
            [("tower_1/mean", "AddV2", "Mean")],
            id="no penalty, as it is of examples",
        ),
    ],
)
def test_differences_next_to_an_inner_penalty_are_found(
    change: Op, expected: list[tuple[str, ...]]
) -> None:
    assert found(penalized_within(change)) == expected


def test_a_second_term_of_the_examples_is_a_difference() -> None:
    graph = program(
        on(1, "tower_1/mean", "Mean", "tower_1/w/MatMul"),
        on(1, "tower_1/aux", "Mean", "tower_1/x"),
        on(1, "tower_1/loss", "AddV2", "tower_1/mean", "tower_1/aux"),
    )

    assert found(graph) == [("tower_1/loss", "Mean", "AddV2")]


@pytest.mark.parametrize("kind", ["Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan"])
def test_a_factor_of_the_whole_loss_is_no_difference(kind: str) -> None:
    """Towers of unequal size are weighted by their parts of the batch."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/part", "Const"),
            on(i, f"tower_{i}/loss", kind, f"tower_{i}/mean", f"tower_{i}/part"),
        ]

    assert objects(program(*ops, values={"tower_0/part": 0.25, "tower_1/part": 0.75})) == []


def test_a_factor_before_the_loss_is_no_difference_either() -> None:
    assert objects(scaled(0.25, 0.5, 0.25)) == []


def test_ops_outside_of_the_loss_are_not_compared() -> None:
    graph = program(
        on(0, "tower_0/accuracy", "InTopKV2", "tower_0/w/MatMul"),
        on(1, "tower_1/entropy", "Softmax", "tower_1/w/MatMul"),
    )

    assert TowersAlike().judge(graph).state == "kept"


def test_devices_within_a_tower_are_not_compared() -> None:
    graph = program(op("tower_1/loss", "Mean", "/cpu:0", "CPU:0", "tower_1/w/MatMul"))

    assert TowersAlike().judge(graph).state == "kept"


def test_shared_inputs_from_the_host_are_not_followed() -> None:
    graph = program(
        host("batch", "IteratorGetNext"),
        on(0, "tower_0/x", "Identity", "batch"),
        on(1, "tower_1/x", "Identity", "batch"),
    )

    assert TowersAlike().judge(graph).state == "kept"


def test_inputs_are_not_followed_into_their_pipelines() -> None:
    graph = program(
        host("files", "IteratorV2"),
        host("more", "OneShotIterator"),
        on(0, "tower_0/x", "IteratorGetNext", "files"),
        on(1, "tower_1/x", "IteratorGetNext", "more"),
    )

    assert TowersAlike().judge(graph).state == "kept"


@pytest.mark.parametrize(
    "kind",
    [
        "PlaceholderWithDefault",
        "IteratorGetNext",
        "IteratorGetNextSync",
        "QueueDequeueManyV2",
        "ReaderReadV2",
        "MapUnstage",
        "Enter",
        "RefEnter",
    ],
)
def test_inputs_of_towers_may_be_computed_in_any_way(kind: str) -> None:
    graph = program(
        host("zeros", "Const"),
        host("more", "Range"),
        on(0, "tower_0/x", kind, "zeros"),
        on(1, "tower_1/x", kind, "more"),
    )

    assert objects(graph) == []


def test_towers_of_two_gpus_each(snapshot: SnapshotAssertion) -> None:
    """Each tower has its second layer on another GPU."""
    layers = [
        on(gpu, f"tower_{i}/b/MatMul", "MatMul", f"tower_{i}/a/MatMul", f"tower_{i}/b/read")
        for i, gpu in [(0, 2), (1, 3)]
    ]
    reads = [on(gpu, f"tower_{i}/b/read", "ReadVariableOp", "b") for i, gpu in [(0, 2), (1, 3)]]
    odd = on(1, "tower_1/loss", "Sum", "tower_1/b/MatMul")
    graph = program(*layers, *reads, odd, variables=["a", "b"], machine="gpu*4")

    verdict = TowersAlike().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["tower_1/loss"]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 12])
def test_the_parts_of_one_loss_of_all_towers_are_compared(count: int) -> None:
    odd = on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul")

    assert objects(joint(range(count))) == []
    assert found(program(odd, gpus=range(count), step={"objectives": ("loss:0",)})) == [
        ("tower_1/loss", "Mean", "Sum")
    ]


def test_several_losses_a_tower_are_compared_in_their_order() -> None:
    ops = []
    for i, kind in enumerate(["Sum", "Max"]):
        ops.append(on(i, f"tower_{i}/fake", kind, f"tower_{i}/w/MatMul"))
    losses = [f"tower_{i}/{name}" for name in ("loss", "fake") for i in (0, 1)]

    assert found(program(*ops, step={"objectives": losses})) == [("tower_1/fake", "Sum", "Max")]


def test_a_difference_is_found_despite_a_tower_with_another_number_of_losses() -> None:
    odd = on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul")
    losses = (*(f"tower_{i}/loss" for i in range(3)), "tower_2/w/MatMul")
    graph = program(odd, gpus=range(3), step={"objectives": losses})

    assert found(graph) == [("tower_1/loss", "Mean", "Sum")]


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), ["tower_1/one", "tower_1/aux/other"]),
        (("tower_1/one",), ["tower_1/aux/other"]),
        (("tower_1/aux/*",), ["tower_1/one"]),
        (("tower_1/*",), []),
        (("tower_0/*", "one"), ["tower_1/one", "tower_1/aux/other"]),
    ],
)
def test_declared_differences(allow: Sequence[str], left: Sequence[str]) -> None:
    ops = []
    for i, (one, other) in enumerate([("Relu", "Tanh"), ("Elu", "Sigmoid")]):
        ops += [
            on(i, f"tower_{i}/one", one, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/aux/other", other, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/one", f"tower_{i}/aux/other"),
        ]

    assert objects(program(*ops), allow=allow) == left


def test_needs_no_placer() -> None:
    odd = on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul")

    assert objects(program(odd, placer=None, assigned=Missing("no wheel for this"))) == [
        "tower_1/loss"
    ]


def test_needs_no_train_op() -> None:
    odd = on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul")

    assert objects(program(odd, step={"train_op": ()})) == ["tower_1/loss"]


def test_reported_losses_are_compared_if_no_gradients_are_taken() -> None:
    odd = on(1, "tower_1/loss", "Sum", "tower_1/w/MatMul")
    losses = ("tower_0/loss:0", "tower_1/loss:0")

    assert objects(program(odd, step={"objectives": (), "losses": losses})) == ["tower_1/loss"]


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert TowersAlike().judge(graph) == Verdict("towers-alike", "not-checked", None, reason)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(program(step={"objectives": (), "losses": ()}), id="no losses"),
        pytest.param(
            program(step={"objectives": ("tower_0/loss:0",)}),
            id="the loss of one",
        ),
        pytest.param(
            program(step={"objectives": ("tower_0/loss", "tower_0/w/MatMul", "tower_1/loss")}),
            id="losses of different numbers",
        ),
        pytest.param(mixed_losses(), id="mixed losses"),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = TowersAlike().judge(graph)

    assert verdict == Verdict("towers-alike", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("source", "shape", "found"),
    [
        pytest.param("rows", (), [], id="a scalar"),
        pytest.param("rows", (4,), [], id="of no example"),
        pytest.param("tower_1/x", (4,), ["tower_1/ids"], id="of examples"),
    ],
)
def test_whole_numbers_that_only_one_tower_computes(
    source: str, shape: tuple[int, ...], found: Sequence[str]
) -> None:
    """A tower's first row index is not part of its model; labels are."""
    first = "tower_0/x" if source == "tower_1/x" else "rows"
    graph = program(
        host("rows", "Const"),
        on(0, "tower_0/ids", "Cast", first),
        on(1, "tower_1/ids", "AddV2", source, source),
        *(
            on(
                i,
                f"tower_{i}/w/MatMul",
                "MatMul",
                f"tower_{i}/x",
                f"tower_{i}/w/read",
                f"tower_{i}/ids",
            )
            for i in (0, 1)
        ),
        outputs={"tower_0/ids": shape, "tower_1/ids": shape},
        dtypes={"tower_0/ids": "int64", "tower_1/ids": "int64"},
    )

    assert objects(graph) == found


def two_networks(taken: Sequence[str], *changes: Op) -> Placement:
    """Towers with a critic v and an actor w, which have a loss each.

    ``taken`` are the losses of which each tower takes the gradient for the actor.
    """
    ops: list[Op] = []
    gradients: dict[str, list[str]] = {}
    by_variable: dict[str, list[str]] = {"v": [], "w": []}
    for i, loss in enumerate(taken):
        ops += [on(i, f"tower_{i}/actor", "Neg", f"tower_{i}/loss")]
        for variable_name, objective in (("v", "loss"), ("w", loss)):
            name = f"gradients/tower_{i}/{objective}_{variable_name}"
            ops += [on(i, name, "Mul", f"tower_{i}/w/MatMul", f"tower_{i}/{objective}")]
            gradients.setdefault(f"tower_{i}/{objective}:0", []).append(name)
            by_variable[variable_name].append(name)
    ops += [host(f"sum/{name}", "AddN", *by_variable[name]) for name in by_variable]
    return program(
        *ops,
        *changes,
        gpus=range(len(taken)),
        variables=("v", "w"),
        step={
            "objectives": tuple(gradients),
            "gradients": gradients,
            "gradients_by_variable": by_variable,
        },
    )


def test_each_network_has_its_loss() -> None:
    assert TowersAlike().judge(two_networks(["actor", "actor", "actor"])).state == "kept"


def test_the_loss_of_another_network_in_one_tower(snapshot: SnapshotAssertion) -> None:
    verdict = TowersAlike().judge(two_networks(["actor", "loss", "actor"]))

    assert [finding.object for finding in verdict.findings] == ["w"]
    assert messages(verdict) == snapshot


def test_the_losses_of_networks_that_are_exchanged_in_one_tower() -> None:
    graph = two_networks(["actor", "actor"])
    step = graph.step
    gradients = {
        **step.gradients,
        "tower_1/loss:0": step.gradients["tower_1/actor:0"],
        "tower_1/actor:0": step.gradients["tower_1/loss:0"],
    }

    assert objects(graph.with_fields(step=step._replace(gradients=gradients))) == ["v", "w"]


def test_a_gradient_that_no_update_takes_trains_nothing() -> None:
    graph = two_networks(["actor", "actor"])
    step = graph.step
    unused = {
        **step.gradients_by_variable,
        "w": ("gradients/tower_1/loss_v", *step.gradients_by_variable["w"]),
    }

    assert objects(graph.with_fields(step=step._replace(gradients_by_variable=unused))) == []
