"""Placements compared with a baseline: refactors keep it, and moved ops are named."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from support.baselines import TWO, WITH_SLOTS, difference, moved, renamed, report
from support.graphs import placement
from support.towers import gradient, host, on, program, recorded

from placement_checks import Machine, Op, Placement
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.compare import compare
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import NO_OP
from placement_checks.core.variables import Variables


@pytest.mark.parametrize("graph", [TWO, WITH_SLOTS, program(gpus=[0]), program(gpus=range(12))])
def test_a_program_keeps_its_own_baseline(graph: Placement) -> None:
    found = difference(graph, graph)

    assert not found
    assert not found.notes
    assert found.same == len(graph.ops) - len(graph.variables) - 1  # and the train op


def test_names_do_not_count() -> None:
    found = difference(TWO, renamed(TWO, lambda name: f"net/{name}"))

    assert not found
    assert found.notes == ["3 variables renamed: w -> net/w, v -> net/v, step -> net/step"]


def test_the_order_of_building_does_not_count() -> None:
    backwards = replace(TWO, variables=Variables(reversed(TWO.variables)))

    assert not difference(TWO, backwards)


def test_a_moved_op_is_named_with_its_address() -> None:
    new = moved(renamed(TWO, lambda name: f"net/{name}"), **{"net/tower_1/v/MatMul": "/gpu:0"})

    assert report(TWO, new) == (
        "1 moved, 0 new, 0 gone; 27 ops placed as in towers.toml\n"
        "moved:\n"
        "  forward of tower 1, layer net: /gpu:1 -> /gpu:0  "
        "(1 op: MatMul net/tower_1/v/MatMul)\n"
        "more data copied in each step:\n"
        "  /gpu:0 -> /gpu:1: 1 copy of unknown size (was none)\n"
        "  /gpu:1 -> /gpu:0: 1 copy of unknown size (was none)\n"
        "other changes, on the same devices:\n"
        "  3 variables renamed: w -> net/w, v -> net/v, step -> net/step"
    )


def with_variable(name: str, place: str) -> Placement:
    """A placement with another device for a variable and for the ops colocated with it."""
    reads = {f"tower_{tower}/{name}/read": place for tower in (0, 1)}
    return moved(WITH_SLOTS, **{name: place, f"update/{name}": place, **reads})


def test_a_moved_variable_is_one_line_with_its_ops() -> None:
    new = moved(with_variable("w", "/gpu:0"), **{"w/m": "/gpu:0"})

    assert report(WITH_SLOTS, new).split("\n")[:3] == [
        "1 moved, 0 new, 0 gone; 28 ops placed as in towers.toml",
        "moved:",
        "  variable w: /cpu:0 -> /gpu:0  (16 bytes, 3 ops with it, 1 slot with it)",
    ]


def test_ops_that_a_variable_leaves_behind_are_reported() -> None:
    lines = report(WITH_SLOTS, moved(WITH_SLOTS, w="/gpu:0")).split("\n")

    assert lines[2] == "  variable w: /cpu:0 -> /gpu:0  (16 bytes)"
    assert lines[3] == (
        "  apply, layer w: with its variable on /gpu:0 -> /cpu:0  "
        "(1 op: ResourceApplyMomentum update/w)"
    )


def test_moved_slots_are_one_line() -> None:
    new = moved(WITH_SLOTS, **{"w/m": "/gpu:1", "v/m": "/gpu:1"})

    assert "  slots of 2 variables: /cpu:0 -> /gpu:1" in report(WITH_SLOTS, new).split("\n")


def test_variables_in_another_round_robin_order_are_one_line() -> None:
    names = ["a", "b", "c", "d"]
    machine = "ps*2; worker*1: gpu*2"
    graph = replace(program(variables=names), machine=Machine.parse(machine))
    tasks = [f"/job:ps/replica:0/task:{task}/cpu:0" for task in (0, 1)]
    old = moved(graph, **{name: tasks[at % 2] for at, name in enumerate(names)})
    new = moved(graph, **{name: tasks[1 - at % 2] for at, name in enumerate(names)})

    (first, *_) = difference(old, new).moved

    assert first.what == "4 of 5 variables are distributed to /job:ps in another order"
    assert first.ops == names


def test_a_moved_tower_is_one_line() -> None:
    everything = {
        op.name: "/gpu:0" for op in TWO.ops.values() if op.assigned and "GPU:1" in str(op.assigned)
    }

    assert report(TWO, moved(TWO, **everything)).split("\n")[:3] == [
        "1 moved, 0 new, 0 gone; 28 ops placed as in towers.toml",
        "moved:",
        "  tower 1: /gpu:1 -> /gpu:0  (9 ops; all 2 towers are on it now)",
    ]


def test_a_missing_tower_comes_first() -> None:
    old, new = (program(gpus=gpus, machine="gpu*3") for gpus in ([0, 1, 2], [0, 1]))

    assert report(old, new).split("\n")[:3] == [
        "0 moved, 0 new, 1 gone; 19 ops placed as in towers.toml",
        "gone:",
        "  tower 2, was on /gpu:2  (2 towers, were 3)",
    ]
    assert report(new, old).split("\n")[:3] == [
        "0 moved, 1 new, 0 gone; 25 ops placed as in towers.toml",
        "new:",
        "  tower 2 on /gpu:2  (6 ops)",
    ]


def test_the_order_of_towers_does_not_count() -> None:
    assert not difference(TWO, program(variables=["w", "v"], gpus=[1, 0]))


def test_an_added_and_a_removed_variable() -> None:
    less, more = program(variables=["w"]), program(variables=["w", "v"])

    assert [change.what for change in difference(less, more).new_there] == [
        "variable v (float32[4])"
    ]
    assert [change.what for change in difference(more, less).gone] == ["variable v (float32[4])"]


def test_a_changed_shape_is_a_note() -> None:
    found = difference(TWO, program(variables=["w", "v"], shapes={"w": (4, 5)}))

    assert not found
    assert found.notes == ["variable w is float32[4,5], was float32[4]"]


def test_added_ops_are_a_note_unless_the_comparison_is_exact() -> None:
    more = program(
        on(0, "tower_0/more", "Tanh", "tower_0/v/MatMul"),
        on(0, "tower_0/loss", "Mean", "tower_0/more"),
        variables=["w", "v"],
    )

    found = difference(TWO, more)

    assert not found
    assert found.notes == ["numbers of ops in forward of tower 0: Tanh 0 -> 1"]
    (change,) = difference(TWO, more, exact=True).moved
    assert (change.what, change.note) == ("ops of forward of tower 0", "Tanh 0 -> 1")


def with_more_ops(*towers: int) -> Placement:
    ops = [
        op
        for tower in towers
        for op in (
            on(tower, f"tower_{tower}/more", "Tanh", f"tower_{tower}/v/MatMul"),
            on(tower, f"tower_{tower}/loss", "Mean", f"tower_{tower}/more"),
        )
    ]
    return program(*ops, variables=["w", "v"])


@pytest.mark.parametrize(
    ("before", "after", "what", "note"),
    [
        ((0, 1), (0,), "ops of forward of tower 1", "Tanh 1 -> 0"),
        ((0,), (0, 1), "ops of forward of tower 1", "Tanh 0 -> 1"),
        ((), (0, 1), "ops of forward", "Tanh 0 -> 1"),
    ],
)
def test_an_exact_comparison_counts_the_ops_of_each_tower(
    before: tuple[int, ...], after: tuple[int, ...], what: str, note: str
) -> None:
    (change,) = difference(with_more_ops(*before), with_more_ops(*after), exact=True).moved

    assert (change.what, change.note) == (what, note)


def test_added_ops_on_another_device_are_new() -> None:
    more = program(
        host("tower_0/more", "Tanh", "tower_0/v/MatMul"),
        on(0, "tower_0/loss", "Mean", "tower_0/more"),
        variables=["w", "v"],
    )

    (change,) = difference(TWO, more).new_there
    assert (change.what, change.new) == ("forward of tower 0, layer v", "/cpu:0")
    assert change.note == "1 op: Tanh tower_0/more; the others are on /gpu:0"


def test_ops_of_a_new_type_in_a_part_that_only_passes_values_on_are_new() -> None:
    shown = on(0, "tower_0/shown", "Identity", "tower_0/v/MatMul")
    correct = host("tower_0/correct", "InTopKV2", "tower_0/shown")
    old = program(shown, variables=["w", "v"])

    found = difference(old, program(shown, correct, variables=["w", "v"]))

    (change,) = found.new_there
    assert (change.what, change.new) == ("evaluate of tower 0, layer v", "/cpu:0")
    assert not found.moved


def test_a_fallback_has_its_reason() -> None:
    fallen = on(0, "tower_0/more", "Unique", "tower_0/v/MatMul")
    fallen = fallen._replace(assigned=host("a", "").assigned, fallback_reason="no GPU kernel")
    more = program(fallen, on(0, "tower_0/loss", "Mean", "tower_0/more"), variables=["w", "v"])

    (change,) = difference(TWO, more).new_there
    assert "requests /gpu:0: no GPU kernel" in change.note


def test_a_new_part_of_the_step_is_new() -> None:
    more = program(on(1, "shown", "ScalarSummary", "tag", "loss"), variables=["w", "v"])

    (change,) = difference(TWO, more).new_there
    assert (change.what, change.new) == ("summaries", "/gpu:1")
    assert change.note == "1 op: ScalarSummary shown; new in this placement"


def test_each_of_two_allowed_devices_has_a_count() -> None:
    """An op that moves from one of them to the other is misplaced."""
    two = program(
        on(0, "tower_0/a", "Const"),
        host("tower_0/b", "Const"),
        host("tower_0/c", "Const"),
        on(0, "tower_0/loss", "Mean", "tower_0/v/MatMul", "tower_0/a", "tower_0/b", "tower_0/c"),
        variables=["w", "v"],
    )

    assert not difference(two, two)
    (change,) = difference(two, moved(two, **{"tower_0/c": "/gpu:0"})).moved
    assert (change.what, change.old, change.new) == (
        "forward of tower 0, layer v",
        "with its variable on /cpu:0",
        "/gpu:0",
    )
    assert change.note == "1 of these 2; 1 op: Const tower_0/a, ..."
    assert difference(two, moved(two, **{"tower_0/a": "/cpu:0"})).moved
    assert difference(two, moved(two, **{"tower_0/a": "/gpu:1"})).moved


def test_forward_and_backward_of_a_layer_are_one_line() -> None:
    new = moved(TWO, **{"tower_1/w/MatMul": "/gpu:0", gradient(1, "w"): "/gpu:0"})

    (change,) = difference(TWO, new).moved
    assert change.what == "forward and backward of tower 1, layer w"


@pytest.mark.parametrize("graph", [TWO, WITH_SLOTS, program(gpus=[0, 1, 2]), program(gpus=[0])])
def test_every_move_of_a_single_op_is_found(graph: Placement) -> None:
    random, devices = Random(5), graph.machine.devices if graph.machine else ()
    for op in graph.ops.values():
        if op.type != NO_OP:
            to = random.choice([device for device in devices if device is not op.assigned])
            new = graph.with_assigned({**graph.ops, op.name: op._replace(assigned=to)})

            found = difference(graph, new)

            assert found, op.name
            owner = op.name.removesuffix("/m")
            assert any({op.name, owner} & set(change.ops) for change in found.moved), op.name


def test_another_machine_is_an_error_with_both_names() -> None:
    with pytest.raises(InputError) as raised:
        difference(TWO, replace(TWO, machine=Machine.parse("gpu*4")))

    assert str(raised.value) == (
        "towers.toml is the baseline for another machine, gpu*2; this placement is for gpu*4; "
        'compare on that machine: --machine "gpu*2"; or write a baseline for this machine '
        "to another file"
    )


def test_another_placer_is_a_note() -> None:
    found = difference(TWO, replace(TWO, soft=True, placer="session"))

    assert not found
    assert found.notes == [
        "placement is soft, was strict",
        "the placer is session, was phantom",
    ]


def test_another_version_is_a_note_if_anything_differs() -> None:
    old = replace(
        baseline_from_placement(TWO),
        versions={"placement_checks": "0.1.0", "tensorflow": "2.15.1"},
    )

    same = compare(old, TWO)
    other = compare(old, moved(TWO, w="/gpu:0"))

    assert not same.notes
    assert (
        "the baseline was written by placement_checks 0.1.0, tensorflow 2.15.1; this is"
        in (other.notes[-1])
    )


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (placement(placer=None, assigned=Missing("no CUDA build here")), "no CUDA build here"),
        (
            placement(requested=Missing("a log lacks requested devices")),
            "a log lacks requested devices",
        ),
    ],
)
def test_incomplete_placements_have_no_baseline(graph: Placement, message: str) -> None:
    with pytest.raises(InputError, match=message):
        baseline_from_placement(graph)


def test_one_tower_instead_of_two() -> None:
    """The shared ops of a single tower are its own; ops of the second tower are gone with it."""
    one = program(gpus=[0], machine="gpu*2")

    found = difference(program(), one)

    assert [change.what for change in found.gone] == ["tower 1"]
    assert not found.moved


def averaged(share: float, *changes: Op) -> Placement:
    """Two towers with known losses. Their gradients are added up and multiplied by a share."""
    made = recorded("wv", scalars=["norm", "clip/norm"])
    return program(*changes, host("rate", "Const"), values={"share": share}, **made)


def test_another_objective_is_a_change() -> None:
    assert report(averaged(0.5), averaged(1.0)) == (
        "0 moved, 0 new, 0 gone, 1 objective changed; 29 ops placed as in towers.toml\n"
        "objectives that changed:\n"
        "  objective of w, v: mean -> 2 mean"
        "  (2 variables)"
    )


def test_an_objective_does_not_depend_on_the_names_of_its_factors() -> None:
    old, new = (
        averaged(
            0.5,
            host("scaled", "RealDiv", "mean/w", norm),
            host(norm, "Placeholder"),
            host("update/w", "ResourceApplyGradientDescent", "w", "rate", "scaled"),
        )
        for norm in ("norm", "clip/norm")
    )

    assert not difference(old, new)


def test_a_newly_unreadable_objective_is_a_note() -> None:
    squares = [host(f"mean/{name}", "Mul", f"sum/{name}", f"sum/{name}") for name in "wv"]

    found = difference(averaged(0.5), averaged(0.5, *squares))

    assert not found.moved
    assert found.notes == ["objective of w, v cannot be read any more, was mean"]


def test_a_baseline_without_objectives_is_kept() -> None:
    known = baseline_from_placement(averaged(0.5))
    old = replace(known, variables=tuple(replace(each, objective="") for each in known.variables))

    assert not compare(old, averaged(1.0))


def test_variables_of_a_large_scope_that_exchange_devices_are_named() -> None:
    """However many variables there are, each of them is in the baseline."""
    names = [f"net/w{number}" for number in range(600)]
    graph = program(variables=names)
    old, new = (moved(graph, **{name: "/gpu:1"}) for name in (names[7], names[500]))

    first, second, *_ = difference(old, new).moved

    assert (first.what, first.old, first.new) == ("variable net/w7", "/gpu:1", "/cpu:0")
    assert (second.what, second.old, second.new) == ("variable net/w500", "/cpu:0", "/gpu:1")
