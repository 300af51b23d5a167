"""The line to edit: where the ops at fault part from the ops that are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.graphs import HandWrittenDetails, op, placement
from support.towers import host, on, program

from placement_checks.core.frames import Frame
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding
from placement_checks.rules.source_lines import (
    blame,
    blame_creation,
    blame_selection,
    built_once,
    locate,
    made_by_tf_variable,
)

LOOP = {  # build() loops over towers, and averages
    "shared": "main.py:3 main.py:20 net.py:5 net.py:1",
    "loss": "main.py:3 main.py:30",
}


def line_in_loop(graph: Placement, op: str, *shared: str) -> str | None:
    return next(reversed(blame(graph, [op], [*shared, *built_once(graph)])), None)


def line(op: str, lines: dict[str, str], *shared: str) -> str | None:
    return line_in_loop(program(lines={**LOOP, **lines}), op, *shared)


def test_the_loop_is_in_the_function_that_combines_towers() -> None:
    """Not in a function that is called for each tower: it builds ops of one tower."""
    assert line("own", {"own": "main.py:3 main.py:20 net.py:5 net.py:1"}) == "main.py:20"


def test_the_loop_is_in_a_function_that_creates_shared_variables() -> None:
    """A layer of many that is not shared: the line that calls it is in the network's function."""
    own = {"own": "main.py:3 main.py:20 net.py:6 net.py:1"}

    assert line("own", own, "shared") == "net.py:6"


def test_without_combining_ops_the_loop_is_in_the_function_that_splits_the_batch() -> None:
    """Towers that share nothing, each with an update of its own."""
    graph = placement(
        host("x", "Placeholder"),
        *(
            each
            for i in (0, 1)
            for each in (
                on(i, f"tower_{i}/w", "VarHandleOp"),
                on(i, f"tower_{i}/read", "ReadVariableOp", f"tower_{i}/w"),
                on(i, f"tower_{i}/MatMul", "MatMul", "x", f"tower_{i}/read"),
            )
        ),
        lines={"x": "main.py:3 main.py:10", "tower_1/w": "main.py:3 main.py:20 net.py:5"},
    )

    assert line_in_loop(graph, "tower_1/w") == "main.py:20"


def test_an_average_in_a_helper_locates_its_call() -> None:
    lines = {"loss": "main.py:3 main.py:30 average.py:8", "own": "main.py:3 main.py:20 net.py:5"}

    assert line("own", lines) == "main.py:20"


@pytest.mark.parametrize(
    ("lines", "expected"), [("other.py:7 other.py:9", "other.py:9"), ("", None)]
)
def test_ops_without_a_line_in_a_common_function(lines: str, expected: str | None) -> None:
    assert line("own", {"own": lines}) == expected


def test_the_innermost_line_without_a_common_function() -> None:
    graph = program(gpus=[0], lines={"w": "main.py:20 net.py:5"})

    assert line_in_loop(graph, "w") == "net.py:5"


class Details(HandWrittenDetails):
    """Lines as in "build:9 helper:3": a function each, of one file."""

    def frames(self, op: str) -> tuple[Frame, ...]:
        calls = (line.split(":") for line in self.lines[op].split())
        return tuple(Frame("net.py", int(number), function) for function, number in calls)


@pytest.mark.parametrize(
    ("lines", "others", "expected"),
    [
        pytest.param("build:9 clip:3", "build:8", [9], id="the next call of the function"),
        pytest.param("build:9 clip:3", "build:8 grad:5", [9], id="both in a helper of their own"),
        pytest.param("main:1 build:9 clip:3", "main:1 build:8", [1, 9], id="functions in common"),
        pytest.param("build:9 clip:3", "build:9", [9], id="both on one line"),
        pytest.param("build:9 clip:3 mul:4", "build:9 clip:2", [9, 3], id="both in one helper"),
        pytest.param("build:9 clip:3", "train:8", [9, 3], id="no function in common"),
        pytest.param("build:9 clip:3", "", [9, 3], id="nothing is known of the other"),
        pytest.param("build:9", "build:9 grad:5", [9], id="the other is in a helper of that line"),
        pytest.param("build:9 build:9 mul:4", "build:9 build:8", [9], id="a line appears once"),
    ],
)
def test_the_line_is_in_a_function_that_built_both(
    lines: str, others: str, expected: list[int]
) -> None:
    details = Details({"a": lines, "b": others}, {}, {}, {}, {})
    graph = replace(placement(op("a", "Mul"), op("b", "Mul")), details=details)

    assert blame(graph, ["a"], ["b"]) == tuple(f"net.py:{number}" for number in expected)


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        pytest.param(["loop:9 f:3", "loop:9 f:4"], ["loop:8"], [9], id="a call for all of them"),
        pytest.param(["loop:9 f:3", "loop:9 f:4"], ["other:8"], [9, 3], id="nothing in common"),
        pytest.param(["loop:9 f:3", "loop:9 f:4"], [], [9, 3], id="the first of several"),
        pytest.param(["loop:9 f:3", "loop:9 f:3"], [], [9, 3], id="one line for all"),
        pytest.param(["loop:9 f:3"], ["loop:8", "loop:9 f:2"], [9, 3], id="the closest one"),
        pytest.param(["loop:9 f:3"], ["other:8", "loop:8"], [9], id="only what is in common"),
        pytest.param(["", "loop:9 f:3"], [""], [9, 3], id="ops of a library"),
        pytest.param([""], ["loop:9"], [], id="only ops of a library"),
    ],
)
def test_the_line_separates_wrong_ops_from_right_ones(
    wrong: list[str], right: list[str], expected: list[int]
) -> None:
    lines = {f"wrong_{n}": each for n, each in enumerate(wrong)}
    lines |= {f"right_{n}": each for n, each in enumerate(right)}
    graph = replace(
        placement(*(op(name, "Mul") for name in lines)), details=Details(lines, {}, {}, {}, {})
    )
    at_fault = [name for name in lines if name.startswith("wrong")]
    against = [name for name in lines if name.startswith("right")]

    assert blame(graph, at_fault, against) == tuple(f"net.py:{number}" for number in expected)


def scoped(*ops: str, against: Sequence[str] = ()) -> list[str | None]:
    """The lines of findings on ops whose device is wrong; a and b have lines 3 and 4."""
    graph = placement(
        *(op(name, "Mul", requested="/gpu:0") for name in ["a", "b", "right", "elsewhere", "lib"]),
        lines={"a": "net.py:3", "b": "net.py:4", "right": "net.py:5"},
        device_lines={"a": "main.py:9", "b": "main.py:9", "right": "main.py:9"},
    )
    findings = [
        Finding(name, "Mul", "requested", "", "", placed=name, against=tuple(against))
        for name in ops
    ]
    return [each.where for each in locate(findings, graph)]


def test_the_scope_of_ops_on_a_wrong_device_is_the_line_to_edit() -> None:
    assert scoped("a", "b") == ["main.py:9", "main.py:9"]
    assert scoped("a") == ["net.py:3"]
    assert scoped("lib", "a") == ["main.py:9", "main.py:9"]  # lib is an op of a library


def test_a_scope_that_also_decides_a_right_device_is_not_the_line_to_edit() -> None:
    assert scoped("a", "b", against=["right"]) == ["net.py:3", "net.py:4"]
    assert scoped("a", "b", against=["elsewhere"]) == ["main.py:9", "main.py:9"]


def test_the_line_in_a_library_of_another_repository_is_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repository in ("mine", "library"):
        (tmp_path / repository / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine")
    lines = {
        "of_library": "train.py:3 model.py:5 ../library/slim.py:7",
        "of_library_alone": "../library/slim.py:7",
        "outside": "train.py:3 ../notes/own.py:7",
        "run_by_name": "<string>:1 ../program/train.py:3",
    }
    (tmp_path / "program" / ".git").mkdir(parents=True)
    graph = placement(*(op(name, "Mul") for name in lines), lines=lines)

    findings = [Finding(name, "Mul", "requested", "", "") for name in lines]
    located = {each.object: each.library_line for each in locate(findings, graph)}
    assert located == {
        "of_library": "../library/slim.py:7",
        "of_library_alone": None,
        "outside": None,
        "run_by_name": None,
    }
    found = {name: blame(graph, [name])[-1] for name in lines}
    assert found == {
        "of_library": "model.py:5",
        "of_library_alone": "../library/slim.py:7",
        "outside": "../notes/own.py:7",
        "run_by_name": "../program/train.py:3",
    }


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("main:3 __init__:20 dense:5", [3], id="in the function of a model"),
        pytest.param("main:3 __init__:9 __init__:20", [3, 9], id="a model in an object"),
        pytest.param("main:3 model:20", [3, 20], id="a function"),
        pytest.param("__init__:20 dense:5", [20, 5], id="the caller is unknown"),
    ],
)
def test_a_variable_is_created_where_its_model_is(lines: str, expected: list[int]) -> None:
    graph = replace(
        placement(op("w", "VarHandleOp")), details=Details({"w": lines}, {}, {}, {}, {})
    )

    assert blame_creation(graph, "w") == tuple(f"net.py:{number}" for number in expected)


@pytest.mark.parametrize("function", ["get_variable", "Variable"])
def test_a_tensor_as_initial_value_of_get_variable(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has no initializer of `get_variable`, so the source tells."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(f"def build():\n    tf1.{function}(start)\n", encoding="utf-8")
    details = Details({"w": "build:2"}, {}, {}, {}, {})
    graph = replace(placement(op("w", "VarHandleOp")), details=details)

    assert made_by_tf_variable(graph, "w") is (function == "Variable")


@pytest.mark.parametrize(("wrong", "expected"), [("build:9", 3), ("build:9 <listcomp>:10", 3)])
def test_the_list_that_an_op_takes_is_assigned_before(
    wrong: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["", "def build():", "    used = grads[1:]", *[""] * 5, "    add(", "    used)"]
    Path("net.py").write_text("\n".join(lines), encoding="utf-8")
    stacks = {"sum": f"{wrong} average:2", "grad": "build:8 tower:4"}
    details = Details(stacks, {}, {}, {}, {})
    graph = replace(placement(op("sum", "AddN"), op("grad", "Mul")), details=details)

    assert blame_selection(graph, ["sum"], ["grad"]) == (f"net.py:{expected}",)
