"""Two baselines compared by their lines: what differs is what a placement would show."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from support.baselines import TWO, WITH_SLOTS, difference, moved, renamed
from support.towers import gradient, host, on, program

from placement_checks import Placement
from placement_checks.baseline.compare import written
from placement_checks.baseline.compare_files import compare_pages
from placement_checks.baseline.parse import parse
from placement_checks.baseline.text import render
from placement_checks.core.baseline import Baseline, Difference
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import NO_OP
from placement_checks.report.common.baseline import render_text


def page(graph: Placement) -> Baseline:
    return parse(render(written(graph)), "towers.txt")


def pages(old: Placement, new: Placement) -> Difference:
    return compare_pages(page(old), page(new), "old.txt", "new.txt")


def report(old: Placement, new: Placement) -> list[str]:
    return render_text(pages(old, new)).split("\n")


@pytest.mark.parametrize("graph", [TWO, WITH_SLOTS, program(gpus=[0]), program(gpus=range(12))])
def test_names_do_not_count(graph: Placement) -> None:
    assert report(graph, graph) == ["nothing has moved from old.txt to new.txt"]
    assert not pages(graph, renamed(graph, lambda name: f"net/{name}"))


def test_ops_elsewhere_are_told_with_their_address() -> None:
    new = moved(renamed(TWO, lambda name: f"net/{name}"), **{"net/tower_1/v/MatMul": "/gpu:0"})

    assert report(TWO, new) == [
        "1 moved, 0 new, 0 gone from old.txt to new.txt",
        "moved:",
        "  forward of tower 1, layer net: /gpu:1 -> /gpu:0  (MatMul)",
        "crosses now, a step:",
        "  /gpu:0 -> /gpu:1: 1 copy of unknown size, before nothing",
        "  /gpu:1 -> /gpu:0: 1 copy of unknown size, before nothing",
        "no difference of places:",
        "  3 variables renamed: w is net/w, v is net/v, step is net/step",
    ]


def test_the_way_back_is_told_as_well() -> None:
    old = moved(TWO, **{"tower_1/v/MatMul": "/gpu:0"})

    assert report(old, TWO)[2] == "  forward of tower 1, layer v: /gpu:0 -> /gpu:1  (MatMul)"


def test_a_variable_is_one_line_with_what_goes_with_it() -> None:
    reads = {f"tower_{tower}/w/read": "/gpu:0" for tower in (0, 1)}
    new = moved(WITH_SLOTS, **{"w": "/gpu:0", "update/w": "/gpu:0", "w/m": "/gpu:0", **reads})

    assert report(WITH_SLOTS, new)[:3] == [
        "1 moved, 0 new, 0 gone from old.txt to new.txt",
        "moved:",
        "  variable w: /cpu:0 -> /gpu:0  (16 bytes, 1 slot with it)",
    ]


def test_what_a_variable_leaves_behind_is_told() -> None:
    lines = report(WITH_SLOTS, moved(WITH_SLOTS, w="/gpu:0"))

    assert lines[3] == ("  apply, layer w: with its variable on /gpu:0 -> /cpu:0")


def test_a_tower_elsewhere_is_one_line() -> None:
    everything = {
        op.name: "/gpu:0" for op in TWO.ops.values() if op.assigned and "GPU:1" in str(op.assigned)
    }

    assert report(TWO, moved(TWO, **everything))[:3] == [
        "1 moved, 0 new, 0 gone from old.txt to new.txt",
        "moved:",
        "  tower 1: /gpu:1 -> /gpu:0  (all 2 towers are on it now)",
    ]


def test_what_all_towers_have_elsewhere_is_one_line() -> None:
    new = moved(TWO, **{gradient(tower, "w"): "/cpu:0" for tower in (0, 1)})

    assert report(TWO, new)[2] == (
        "  backward of tower 0-1, layer w: its tower's device -> /cpu:0  (MatMul)"
    )


def test_towers_and_variables_more_and_less() -> None:
    two, three = (program(gpus=gpus, machine="gpu*3") for gpus in ([0, 1], [0, 1, 2]))
    less, more = program(variables=["w"]), TWO

    assert [each.what for each in pages(two, three).new_there] == ["tower 2"]
    assert [each.what for each in pages(three, two).gone] == ["tower 2"]
    assert [each.what for each in pages(less, more).new_there] == ["variable v (float32[4])"]
    assert [each.what for each in pages(more, less).gone] == ["variable v (float32[4])"]


def test_one_tower_for_two() -> None:
    """What was shared by two is then one's own, and need not be where all of its own was."""
    shared = host("shared", "Placeholder"), on(0, "tower_0/x", "Mul", "shared")
    two = program(*shared, on(1, "tower_1/x", "Mul", "shared"))
    found = pages(two, program(*shared, gpus=[0], machine="gpu*2"))

    assert [each.what for each in found.gone] == ["tower 1"]
    assert not found.moved
    assert not found.new_there


def test_ops_of_another_type_elsewhere_and_a_part_that_was_not_there_are_new() -> None:
    fallen = program(
        host("tower_0/more", "Tanh", "tower_0/v/MatMul"),
        on(0, "tower_0/loss", "Mean", "tower_0/more"),
        variables=["w", "v"],
    )
    shown = program(on(1, "shown", "ScalarSummary", "tag", "loss"), variables=["w", "v"])

    assert report(TWO, fallen)[1:3] == [
        "new:",
        "  forward of tower 0, layer v on /cpu:0  (Tanh; the rest is on /gpu:0)",
    ]
    assert not pages(fallen, TWO)
    assert report(TWO, shown)[1:3] == ["new:", "  summaries on /gpu:1  (the old one has none)"]


def test_of_two_places_that_are_allowed_each_has_its_number() -> None:
    two = program(
        on(0, "tower_0/a", "Const"),
        host("tower_0/b", "Const"),
        host("tower_0/c", "Const"),
        on(0, "tower_0/loss", "Mean", "tower_0/v/MatMul", "tower_0/a", "tower_0/b", "tower_0/c"),
        variables=["w", "v"],
    )

    (change,) = pages(two, moved(two, **{"tower_0/c": "/gpu:0"})).moved
    assert (change.what, change.old, change.new) == (
        "forward of tower 0-1, layer v",  # constants are not counted by tower
        "with its variable on /cpu:0",
        "its tower's device",
    )
    assert pages(two, moved(two, **{"tower_0/a": "/cpu:0"})).moved


@pytest.mark.parametrize("graph", [TWO, WITH_SLOTS, program(gpus=[0, 1, 2]), program(gpus=[0])])
def test_no_move_of_a_single_op_is_missed(graph: Placement) -> None:
    random, devices = Random(5), graph.machine.devices if graph.machine else ()
    for op in graph.ops.values():
        if op.type != NO_OP:
            to = random.choice([device for device in devices if device is not op.assigned])
            new = graph.with_assigned({**graph.ops, op.name: op._replace(assigned=to)})

            assert pages(graph, new), op.name
            assert pages(new, graph), op.name
            assert not pages(new, renamed(new, lambda name: f"net/{name}")), op.name
            assert len(pages(graph, new).moved) == len(difference(graph, new).moved), op.name


def test_two_machines_are_refused_with_both() -> None:
    with pytest.raises(InputError) as raised:
        compare_pages(page(TWO), replace(page(TWO), machine="gpu*4"), "old.txt", "new.txt")

    assert str(raised.value) == (
        "old.txt is of the machine gpu*2, and new.txt of gpu*4; compare two of one machine; a "
        "program is placed on another with --machine"
    )
