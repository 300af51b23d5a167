"""The explanation of an op or variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.graphs import op, placement
from support.towers import gradient, host, mixed_losses, on, program, recorded, variable

from placement_checks import Finding, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE, Refusal
from placement_checks.report.text.explain import explain_op


def rows_of(graph: Placement, name: str, *verdicts: Verdict) -> dict[str, list[str]]:
    """The lines of each row by its label; '' is the label of the headline."""
    headline, _, *lines = explain_op(graph, name, verdicts)
    rows: dict[str, list[str]] = {"": [headline]}
    label = ""
    indent = next(i for i in range(3, 40) if lines[0][i - 2 : i] == "  " and lines[0][i] != " ")
    for line in lines:
        label = line[:indent].strip() or label
        rows.setdefault(label, []).append(line[indent:])
    return rows


def test_a_variable_that_all_towers_read() -> None:
    graph = program(
        lines={"w": "train.py:88 model.py:3", "update/w": "train.py:90"},
        device_lines={"w": "train.py:40"},
        collections={TRAINABLE: ["w"], GLOBAL: ["w", "step"]},
        shapes={"w": (8, 16)},
    )

    assert rows_of(graph, "w") == {
        "": ["w (VarHandleOp): float32 [8, 16], 512 bytes"],
        "built at": ["train.py:88", "model.py:3"],
        "requests": ["/device:CPU:0, by train.py:40"],
        "placed on": ["/device:CPU:0, as requested"],
        "is in": ["TRAINABLE_VARIABLES and GLOBAL_VARIABLES"],
        "role": ["shared: the towers on /device:GPU:0 and /device:GPU:1 read it"],
        "read by": [
            "the tower on /device:GPU:0: tower_0/w/MatMul (MatMul) on /device:GPU:0",
            "the tower on /device:GPU:1: tower_1/w/MatMul (MatMul) on /device:GPU:1",
        ],
        "updated by": [
            "update/w (ResourceApplyGradientDescent) on /device:CPU:0, train.py:90",
        ],
        "gradient": [
            "mean/w (Mul) on /device:CPU:0, of the towers on /device:GPU:0 and /device:GPU:1"
        ],
    }


def test_the_objective_of_a_variable() -> None:
    rate = host("rate", "Const")

    rows = rows_of(program(rate, values={"share": 0.5}, **recorded()), "w")

    assert rows["objective"] == ["mean"]


def test_a_variable_that_nobody_uses() -> None:
    graph = program(variable("b"), collections={TRAINABLE: ["w", "b"]}, shapes={"b": None})

    rows = rows_of(graph, "b")

    assert rows[""] == ["b (VarHandleOp): float32 of unknown shape"]
    assert rows["is in"] == ["TRAINABLE_VARIABLES"]
    assert rows["read by"] == ["no op that computes"]
    assert rows["updated by"] == ["no op of the step"]
    assert rows["gradient"] == ["no update applies a gradient"]


def test_a_variable_outside_all_collections() -> None:
    graph = program(collections={TRAINABLE: ["w"]})

    rows = rows_of(graph, "step")

    assert rows["is in"] == ["neither TRAINABLE_VARIABLES nor GLOBAL_VARIABLES"]
    assert "gradient" not in rows


def test_a_program_with_an_unknown_step() -> None:
    graph = program(collections={TRAINABLE: ["w", "b"]}, step={"train_op": ()})

    (reason,) = rows_of(program(variable("b"), step={"train_op": ()}), "b")["updated by"][:1]

    assert reason.startswith("the train op is unknown; return it from the function")
    assert rows_of(graph, "w")["updated by"] == [
        "update/w (ResourceApplyGradientDescent) on /device:CPU:0"
    ]


def test_an_op_with_its_inputs_and_consumers() -> None:
    rows = rows_of(program(outputs={"tower_0/w/MatMul": (None, 4)}), "tower_0/w/MatMul")

    assert rows[""] == ["tower_0/w/MatMul (MatMul): float32 [?, 4]"]
    assert rows["inputs"] == [
        "tower_0/x (Placeholder) on /device:GPU:0",
        "tower_0/w/read (ReadVariableOp) on /device:CPU:0",
    ]
    assert rows["read by"] == [
        "the tower on /device:GPU:0: tower_0/loss (Mean) on /device:GPU:0, and 1 other op"
    ]


def test_a_backward_op_and_its_forward_op_name_each_other() -> None:
    graph = program()
    backward = gradient(1, "w")

    (of,) = rows_of(graph, backward)["gradient of"]
    forward = of.partition(" ")[0]

    assert any(line.startswith(backward) for line in rows_of(graph, forward)["gradient"])


def test_an_op_that_waits_for_others() -> None:
    assert rows_of(program(), "train")["waits for"] == [
        "update/w (ResourceApplyGradientDescent) on /device:CPU:0",
        "step/add (AssignAddVariableOp) on /device:CPU:0",
    ]


def test_consumers_of_a_loss_have_their_tower() -> None:
    rows = rows_of(mixed_losses(), "tower_0/loss")

    assert [line.partition(":")[0] for line in rows["read by"]] == [
        "no tower",
        "the tower on /device",
        "the tower on /device",
    ]


FELL = op(
    "a", "Sin", "/gpu:3", "CPU:0", fallback_reason="the machine (gpu*2) has no /device:GPU:3"
)


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (host("a", "Sin"), "/device:CPU:0, as requested"),
        (op("a", "Sin", "", "GPU:0"), "/device:GPU:0, chosen by the placer"),
        (op("a", "Sin", "/job:localhost", "GPU:0"), "/device:GPU:0, chosen by the placer"),
        (FELL, "/device:CPU:0, the machine (gpu*2) has no /device:GPU:3"),
        (
            op("a", "Sin", "", "GPU:0", colocated=("v",)),
            "/device:GPU:0, colocated with v",
        ),
        (op("a", "Sin", "/gpu:0", "CPU:0", "v"), "/device:CPU:0, with its input v"),
        (op("a", "Sin", "/gpu:0"), "unknown: the op was not placed"),
    ],
)
def test_the_reason_for_the_device(of: object, why: str) -> None:
    graph = placement(variable("v"), of)  # type: ignore[arg-type]

    assert rows_of(graph, "a")["placed on"] == [why]


def test_an_op_that_the_placer_refuses() -> None:
    graph = placement(on(0, "a", "Sin"), refusals=[Refusal("a", "no kernel\nmore")])

    assert rows_of(graph, "a")["placed on"] == ["no device, the placer refuses the op: no kernel"]


def test_a_program_that_was_not_placed() -> None:
    graph = placement(op("a", "Sin"), placer=None)

    assert rows_of(graph, "a")["placed on"] == [
        "unknown: devices were not assigned; use place(…) instead of requested(…)"
    ]
    assert rows_of(graph, "a")["requests"] == ["no device"]


def test_the_request_of_a_colocated_op() -> None:
    graph = placement(variable("v"), op("a", "Sin", colocated=("v", "lost")))

    assert rows_of(graph, "a")["requests"] == [
        "no device",
        "the device of v, which requests /device:CPU:0",
        "the device of lost",
    ]


def test_a_log_shows_the_device_only() -> None:
    graph = placement(op("w", "VarHandleOp", "", "GPU:0"), requested=Missing("a log lacks it"))

    assert rows_of(graph, "w") == {
        "": ["w (VarHandleOp): float32 [4], 16 bytes"],
        "requests": ["unknown: a log lacks it"],
        "placed on": ["/device:GPU:0, as the log states"],
    }


def test_the_source_text_of_a_line_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("build.py").write_text("import x\n    w = get_variable()\n")
    os.utime("build.py", (0, 0))  # before it was run
    graph = placement(
        variable("w"), lines={"w": "build.py:2 build.py:9"}, device_lines={"w": "build.py:1"}
    )

    assert rows_of(graph, "w")["built at"] == ["build.py:2  w = get_variable()", "build.py:9"]
    assert rows_of(graph, "w")["requests"] == ["/device:CPU:0, by build.py:1  import x"]


def test_findings_on_the_op() -> None:
    findings = [Finding(name, "", "requested", f"{name} is wrong", "") for name in "vw"]
    verdict = Verdict("variables-shared", "broken", "requested", None, findings)

    assert rows_of(placement(variable("v"), variable("w")), "w", verdict)["findings"] == [
        "variables-shared: w is wrong"
    ]
