"""Tensors that are equal by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from support.graphs import op, placement

from placement_checks import Op
from placement_checks.analysis.graph.analysis import GraphAnalysis
from placement_checks.analysis.graph.value_numbering import EqualTensors
from placement_checks.core.placement import Details


def are_equal(*ops: Op, tensors: tuple[str, str] = ("one", "other"), **more: Any) -> bool:
    graph = placement(*ops, **more)
    equal = EqualTensors(GraphAnalysis(graph))
    one, other = map(equal.key, tensors)
    return one == other


def twice(kind: str, *inputs: str) -> list[Op]:
    return [op(name, kind, "", "", *inputs) for name in ("one", "other")]


X = op("x", "Placeholder")


@pytest.mark.parametrize(
    ("inputs", "others", "equal"),
    [
        (["x"], ["x"], True),
        (["x"], ["x:0"], True),
        (["x"], ["x:1"], False),
        (["x"], ["x", "^y"], True),
        (["x", "y"], ["y", "x"], False),
        (["x", "y"], ["x"], False),
    ],
)
def test_ops_of_one_type_on_one_source(
    inputs: Sequence[str], others: Sequence[str], equal: bool
) -> None:
    ops = [op("one", "Slice", "", "", *inputs), op("other", "Slice", "", "", *others)]

    assert are_equal(X, op("y", "Placeholder"), *ops) == equal


@pytest.mark.parametrize(
    ("tensors", "equal"), [(("x", "x:0"), True), (("x", "x:1"), False), (("x:1", "x:1"), True)]
)
def test_outputs_of_one_op(tensors: tuple[str, str], equal: bool) -> None:
    assert are_equal(X, tensors=tensors) == equal


@pytest.mark.parametrize("attribute", ["seed", "shared_name", "frame_name"])
def test_attributes_that_only_name_an_op_do_not_count(attribute: str) -> None:
    attributes = {"one": {attribute: 1}, "other": {attribute: 2}}

    assert are_equal(X, *twice("Cast", "x"), attributes=attributes)


class LargeConstants(Details):
    """Constants whose values are too large to be read; their digests are known."""

    def digest(self, op: str) -> str:
        return {"one": "digest", "other": "digest", "third": "another digest"}[op]


def test_large_constants_are_compared_by_their_digests() -> None:
    graph = placement(*(op(name, "Const") for name in ("one", "other", "third")))
    equal = EqualTensors(GraphAnalysis(graph.with_fields(details=LargeConstants())))

    assert equal.key("one") == equal.key("other") != equal.key("third")


def test_attributes_may_come_in_any_order() -> None:
    attributes = {"one": {"axis": 1, "keep": True}, "other": {"keep": True, "axis": 1}}

    assert are_equal(X, *twice("Sum", "x"), attributes=attributes)


def test_ops_with_different_attributes_are_different() -> None:
    attributes = {"one": {"axis": 1}, "other": {"axis": 2}}

    assert not are_equal(X, *twice("Cast", "x"), attributes=attributes)


@pytest.mark.parametrize(
    ("values", "equal"),
    [
        ({"one": 4, "other": 4}, True),
        ({"one": 4, "other": 8}, False),
        ({"one": 4}, False),
        ({}, False),
    ],
)
def test_constants_are_equal_by_their_values(values: Mapping[str, int], equal: bool) -> None:
    assert are_equal(*twice("Const"), values=values) == equal


@pytest.mark.parametrize(
    ("kind", "equal"),
    [
        ("ReadVariableOp", True),
        ("Identity", True),
        ("RefSwitch", True),
        ("ResourceGather", True),
        ("ResourceGatherNd", True),
        ("AssignAddVariableOp", False),
        ("IteratorGetNext", False),
        ("QueueDequeueV2", False),
        ("ReaderReadV2", False),
    ],
)
def test_reads_of_one_holder_are_equal_but_not_its_next_values(kind: str, equal: bool) -> None:
    assert are_equal(op("state", "VarHandleOp"), *twice(kind, "state", "x"), X) == equal


@pytest.mark.parametrize(
    "kind",
    [
        "QueueDequeueManyV2",
        "ReaderReadV2",
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "RandomShuffle",
        "TruncatedNormal",
        "Multinomial",
        "RandomGamma",
        "RandomPoissonV2",
        "LogUniformCandidateSampler",
    ],
)
def test_values_that_change_with_each_run_are_equal_to_none(kind: str) -> None:
    assert not are_equal(X, *twice(kind, "x"))


@pytest.mark.parametrize(("length", "equal"), [(100, True), (2000, False)])
def test_chains_of_ops_are_followed_as_far_as_slices_need(length: int, equal: bool) -> None:
    """And no further: the chains of a recurrent model would be too deep."""
    ops = [X]
    for chain in ("one", "other"):
        names = ["x", *(f"{chain}_{number}" for number in range(length)), chain]
        ops += [op(name, "Neg", "", "", before) for before, name in pairwise(names)]

    assert are_equal(*ops) == equal


def test_a_value_of_a_loop_equals_a_value_computed_alike() -> None:
    ops = [
        op("enter", "Merge", "", "", "x", "next"),
        op("next", "Neg", "", "", "enter"),
        op("other", "Merge", "", "", "x", "next"),
    ]

    assert are_equal(X, *ops, tensors=("enter", "other"))


def collectives(*names: str, inputs: str, key: str, kind: str = "CollectiveReduceV2") -> list[Op]:
    """The members of a collective, on a GPU each."""
    return [
        op(name, kind, f"/gpu:{gpu}", "", source, key)
        for gpu, (name, source) in enumerate(zip(names, inputs, strict=True))
    ]


SOURCES = [op(name, "Placeholder") for name in "abc"]
KEYS = [op(name, "Const") for name in ("key", "key_2")]


@pytest.mark.parametrize("kind", ["CollectiveReduceV2", "CollectiveGatherV2", "NcclAllReduce"])
def test_all_members_of_a_collective_get_the_same_result(kind: str) -> None:
    members = collectives("one", "other", inputs="ab", key="key", kind=kind)
    values = {"key": 1, "key_2": 2}

    assert are_equal(*SOURCES, *KEYS, *members, values=values)
    scattered = collectives(
        "one", "other", inputs="ab", key="key", kind="CollectiveReduceScatterV2"
    )
    assert not are_equal(*SOURCES, *KEYS, *scattered, values=values)


@pytest.mark.parametrize(("inputs", "equal"), [("ab", True), ("ac", False)])
def test_collectives_are_equal_if_all_their_inputs_are(inputs: str, equal: bool) -> None:
    ops = [
        *collectives("one", "_", inputs="ab", key="key"),
        *collectives("first", "other", inputs=inputs, key="key_2"),
    ]

    assert are_equal(*SOURCES, *KEYS, *ops, values={"key": 1, "key_2": 2}) == equal


@pytest.mark.parametrize(
    ("tensors", "equal"), [(("one", "x"), True), (("one:1", "y"), True), (("one:1", "x"), False)]
)
def test_an_identity_of_several_tensors_passes_each_on(
    tensors: tuple[str, str], equal: bool
) -> None:
    ops = [X, op("y", "Placeholder"), op("one", "IdentityN", "", "", "x", "y")]

    assert are_equal(*ops, tensors=tensors) == equal
