"""The differences between two placements."""

from __future__ import annotations

import pytest
from support.graphs import op, placement

from placement_checks import Device
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.results import MovedOp
from placement_checks.logs import Log, Record
from placement_checks.verification.diff import compare

HOST = "/job:localhost/replica:0/task:0/device"
CPU, GPU = (Device.parse(name).over(LOCALHOST) for name in ("CPU:0", "GPU:0"))


def test_a_graph_does_not_differ_from_itself() -> None:
    graph = placement(op("a", "Add", "", "CPU:0"), op("b", "Add"))

    difference = compare(graph, graph)

    assert not difference
    assert difference.ops == 1  # nobody placed the other


def test_moved_added_and_removed() -> None:
    old = placement(op("a", "Add", "", "CPU:0"), op("b", "Mul", "", "CPU:0"))
    new = placement(op("a", "Add", "", "GPU:0"), op("c", "Sub", "", "CPU:0"))

    difference = compare(old, new)

    assert difference
    assert difference.moved == [MovedOp("a", "Add", (CPU,), (GPU,))]
    assert (difference.removed, difference.added) == ({"b": "Mul"}, {"c": "Sub"})


def test_an_op_on_several_devices_is_compared_as_a_whole() -> None:
    old = Log("old", {Record("a", "Add", f"{HOST}:{at}"): 1 for at in ("CPU:0", "GPU:0")}, 2)
    new = Log("new", {Record("a", "Add", f"{HOST}:{at}"): 1 for at in ("GPU:0", "CPU:0")}, 2)
    one = placement(op("a", "Add", "", "CPU:0"))

    assert not compare(old.placement(), new.placement())
    assert compare(old.placement(), one).moved == [MovedOp("a", "Add", (CPU, GPU), (CPU,))]


def test_the_devices_of_an_op_are_counted_through() -> None:
    names = [f"{HOST}:GPU:{number}" for number in range(12)]
    old = Log("old", {Record("a", "Add", name): 1 for name in reversed(names)}, 12)
    new = placement(op("a", "Add", "", "CPU:0"))

    (moved,) = compare(old.placement(), new).moved

    assert moved.old == tuple(map(Device.parse, names))


def test_unplaced_programs_cannot_be_compared() -> None:
    graph = placement(
        op("a", "Add", "/gpu:0"), placer=None, assigned=Missing("no CUDA build here")
    )

    with pytest.raises(InputError, match="no CUDA build here"):
        compare(graph, graph)
