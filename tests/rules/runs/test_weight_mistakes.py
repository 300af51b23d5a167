from __future__ import annotations

from support.towers import host, on, program, variable

from placement_checks import Op
from placement_checks.rules.gradient_mistakes import MistakeLocation
from placement_checks.rules.runs.weights_equal import repeated_updates, stale_copies

TRAIN = host("train", "NoOp", "^update/w", "^step/add", "^more", "^again")


def test_copies_start_as_the_variable_and_are_read_and_not_updated() -> None:
    graph = program(
        variable("copy"),
        host("value", "ReadVariableOp", "w"),
        host("start", "Identity", "value"),
        host("assign", "AssignVariableOp", "copy", "start"),
        on(1, "tower_1/w/read", "ReadVariableOp", "copy"),
        variable("other"),
        host("zero", "Const"),
        host("zeros", "AssignVariableOp", "other", "zero"),
        on(1, "tower_1/own", "MatMul", "tower_1/w/MatMul", "tower_1/other"),
        on(1, "tower_1/other", "ReadVariableOp", "other"),
        on(1, "tower_1/loss", "Mean", "tower_1/own"),
    )

    assert stale_copies(graph, "w").ops == ["copy"]
    assert stale_copies(graph, "other").ops == []


def more(name: str, kind: str = "AssignAddVariableOp", to: str = "w") -> Op:
    return host(name, kind, to, "share")


def test_one_update_is_not_repeated() -> None:
    assert repeated_updates(program(), "w", is_trained=True) == (1, MistakeLocation())


def test_repeated_updates_of_a_trained_variable_without_an_optimizer() -> None:
    graph = program(more("more"), more("again"), TRAIN)

    number, place = repeated_updates(graph, "w", is_trained=True)

    assert (number, place.ops) == (3, ["more", "again"])


def test_repeated_updates_of_an_average() -> None:
    average = [more("more", to="w/average"), more("again", to="w/average")]
    line = "main.py:26 ema.py:9"
    lines = {"update/w": "main.py:25", "more": line, "again": line}
    graph = program(variable("w/average"), *average, TRAIN, lines=lines)

    number, place = repeated_updates(graph, "w/average", is_trained=False)

    assert number == 2
    assert (place.ops, place.frames) == (["more", "again"], ("main.py:26",))


def test_all_updates_are_named_if_none_trains() -> None:
    graph = program(
        more("more", to="step"), TRAIN, host("update/w", "NoOp"), host("again", "NoOp")
    )

    number, place = repeated_updates(graph, "step", is_trained=False)

    assert (number, place.ops) == (2, ["step/add", "more"])
