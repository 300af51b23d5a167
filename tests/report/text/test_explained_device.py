"""The explanation of a device."""

from __future__ import annotations

from support.graphs import op, placement
from support.towers import on, program, variable

from placement_checks import Device, Finding, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.report.text.explain import explain_device


def lines_of(graph: Placement, device: str, *verdicts: Verdict) -> list[str]:
    """The lines, with single blanks."""
    return [
        " ".join(line.split()) for line in explain_device(graph, Device.parse(device), verdicts)
    ]


def test_the_gpu_of_a_tower() -> None:
    graph = program(device_lines={f"tower_1/{name}": "train.py:9" for name in ("x", "loss")})

    assert lines_of(graph, "/gpu:1") == [
        "/device:GPU:1",
        "",
        "requested by 2 ops, by train.py:9",
        "4 ops, by no line of the program",
        "computes 4 ops: 2 MatMul, 1 Mean, 1 Mul",
        "tower the tower on /device:GPU:1, which reads 1 variable",
        "placed elsewhere tower_1/w/read to /device:CPU:0",
    ]


def test_the_host_has_the_variables_and_no_tower() -> None:
    graph = program(variables=list("abcdefg"), shapes={"a": (8, 4)})

    lines = lines_of(graph, "/cpu:0")

    assert "variables 8, 240 bytes: a, b, c, d, e and 3 more" in lines
    assert not any(line.startswith("tower") for line in lines)


def test_more_types_than_are_named() -> None:
    types = ("Sin", "Cos", "Tan", "Exp", "Log", "Abs")

    lines = lines_of(placement(*(on(0, kind, kind) for kind in types)), "/gpu:0")

    assert "computes 6 ops: 1 Sin, 1 Cos, 1 Tan, 1 Exp, 1 Log, and 1 other types" in lines


def test_a_gpu_that_does_nothing() -> None:
    finding = Finding("/device:GPU:1", "", "assigned", "it computes nothing", "")
    verdict = Verdict("no-idle-device", "broken", "assigned", None, [finding])

    assert lines_of(placement(on(0, "a", "Sin")), "/gpu:1", verdict)[2:] == [
        "requested by no op",
        "computes nothing",
        "findings no-idle-device: it computes nothing",
    ]


def test_a_gpu_that_the_machine_does_not_have() -> None:
    reason = "the machine (gpu*2) has no /device:GPU:2"
    ops = [op(name, "Sin", "/gpu:2", "CPU:0", fallback_reason=reason) for name in "abc"]

    assert lines_of(placement(*ops, variable("v", at="CPU:0")), "/gpu:2") == [
        "/device:GPU:2, which gpu*2 does not have",
        "",
        "requested by 3 ops, by no line of the program",
        "computes nothing",
        f"placed elsewhere a and 2 other ops to /device:CPU:0: {reason}",
    ]


def test_a_device_of_a_task_that_ops_ask_for() -> None:
    ops = [
        op("there", "Sin", "/job:ps/task:1", "/job:ps/task:1/device:CPU:0"),
        op("elsewhere", "Sin", "/job:ps", "/job:ps/task:0/device:CPU:0"),
        op("anywhere", "Sin", "", "/job:ps/task:1/device:CPU:0"),
    ]

    assert lines_of(placement(*ops, machine="ps*2: cpu*1"), "/job:ps/task:1/cpu:0")[2:] == [
        "requested by 1 op, by no line of the program",
        "computes 2 ops: 2 Sin",
    ]


def test_a_device_of_a_log() -> None:
    graph = placement(
        op("a", "Sin", "", "GPU:0"), requested=Missing("a log lacks requested devices")
    )

    assert lines_of(graph, "/gpu:0")[2:] == [
        "requested by unknown: a log lacks requested devices",
        "computes 1 op: 1 Sin",
    ]


def test_a_device_of_a_program_that_was_not_placed() -> None:
    graph = placement(op("a", "Sin", "/gpu:0"), placer=None)

    assert lines_of(graph, "/gpu:0")[2:] == ["requested by 1 op, by no line of the program"]
