"""The differences between two placements."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from support.baselines import TWO, moved, renamed
from support.graphs import op, placement

from placement_checks import Machine, Placement
from placement_checks.core.baseline import Difference
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.logs import Log, Record
from placement_checks.report.common.baseline import change_text
from placement_checks.util.text import join_and
from placement_checks.verification.diff import compare, compare_names

HOST = "/job:localhost/replica:0/task:0/device"


def texts(difference: Difference) -> list[str]:
    return [change_text(each) for each in difference.moved]


def log(name: str, **devices: list[str]) -> Placement:
    records = {
        Record(op, "Add", f"{HOST}:{device}"): 1 for op, each in devices.items() for device in each
    }
    return Log(name, records, len(records)).placement()


def test_two_programs_are_compared_by_address() -> None:
    new = renamed(TWO, lambda name: f"net/{name}")

    assert not compare(TWO, new)
    found = compare(TWO, moved(new, **{"net/tower_1/v/MatMul": "/gpu:0"}))
    assert texts(found) == [
        "forward of tower 1, layer net: /gpu:1 -> /gpu:0  (1 op: MatMul net/tower_1/v/MatMul)"
    ]
    assert (found.old, found.new) == (TWO.program, new.program)


def test_another_machine_is_a_note() -> None:
    found = compare(TWO, replace(TWO, machine=Machine.parse("gpu*4")))

    assert not found
    assert found.notes == [f"placed on gpu*4, in {TWO.program} on gpu*2"]


def test_a_log_is_compared_by_name() -> None:
    graph = placement(op("a", "Add", "", "CPU:0"), op("b", "Add"))

    found = compare(log("old", a=["CPU:0"]), graph)

    assert not found
    assert found.same == 1  # nobody placed the other
    assert texts(compare(log("old", a=["GPU:1"]), graph)) == ["1 op: /gpu:1 -> /cpu:0  (Add a)"]


def test_moved_added_and_removed() -> None:
    old = placement(op("a", "Add", "", "CPU:0"), op("b", "Mul", "", "CPU:0"))
    new = placement(op("a", "Add", "", "GPU:0"), op("c", "Sub", "", "CPU:0"))

    difference = compare_names(old, new, "old")

    assert texts(difference) == ["1 op: /cpu:0 -> /gpu:0  (Add a)"]
    assert [change_text(each) for each in difference.gone] == ["1 op, was on /cpu:0  (Mul b)"]
    assert [change_text(each) for each in difference.new_there] == ["1 op on /cpu:0  (Sub c)"]


def test_variables_come_first_and_of_many_ops_only_some_are_shown() -> None:
    names = [f"a{number}" for number in range(20)]
    old, new = (
        placement(
            *(op(name, "Add", "", device) for name in names),
            op("w", "VarHandleOp", "", device),
            op("x", "Add", "", "CPU:0"),
        )
        for device in ("CPU:0", "GPU:0")
    )

    (change,) = compare_names(old, new, "old", most_named=2).moved

    assert change_text(change) == "21 ops: /cpu:0 -> /gpu:0  (VarHandleOp w, Add a0, ...)"
    assert change.ops == ["w", *names]


def test_an_op_on_several_devices_is_compared_as_a_whole() -> None:
    old, new = log("old", a=["CPU:0", "GPU:0"]), log("new", a=["GPU:0", "CPU:0"])

    assert not compare(old, new)
    assert texts(compare(old, log("one", a=["CPU:0"]))) == [
        "1 op: /cpu:0 and /gpu:0 -> /cpu:0  (Add a)"
    ]


def test_the_devices_of_an_op_are_counted_through() -> None:
    names = [f"GPU:{number}" for number in range(12)]

    (change,) = compare(log("old", a=names[::-1]), log("new", a=["CPU:0"])).moved

    assert change.old == join_and(f"/gpu:{number}" for number in range(12))


def test_a_log_that_was_not_read_in_full_is_a_note() -> None:
    torn = replace(log("old", a=["CPU:0"]), complete=Missing("2 are torn"))

    assert compare(torn, log("new", a=["CPU:0"])).notes == ["old: 2 are torn"]


def test_unplaced_programs_cannot_be_compared() -> None:
    graph = placement(
        op("a", "Add", "/gpu:0"), placer=None, assigned=Missing("no CUDA build here")
    )

    for function in (compare, partial(compare_names, name="old")):
        with pytest.raises(InputError, match="no CUDA build here"):
            function(graph, graph)
