"""A failure in any stage fails the run, and the remaining evidence is reported."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
from support.commands import Ran, Run

from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.errors import PlacerError, as_error
from placement_checks.report import formats
from placement_checks.report.formats import FORMATS
from placement_checks.rules.towers.losses_apart import LossesApart

PROGRAM = """
import sys
import tensorflow as tf

tf1 = tf.compat.v1


def towers(num_gpus=2):
    gradients, inputs = [], []
    with tf.device("/cpu:0"):
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
            x = tf1.placeholder(tf.float32, [None, 8])
            inputs.append({"x": x})
            with tf.device("/cpu:0"):
                w = tf1.get_variable("w", [8, 1])
            gradients.append(optimizer.compute_gradients(tf.reduce_mean(x @ w)))
    with tf.device("/cpu:0"):
        average = [
            (tf.add_n([g for g, _ in pairs]) / num_gpus, pairs[0][1]) for pairs in zip(*gradients)
        ]
        return {"train_op": optimizer.apply_gradients(average), "inputs": inputs}


def single():
    return towers(1)


def batch(rng, n):
    return {"x": rng.normal(size=[n, 8])}


def exits(*_):
    sys.exit(0)


class Odd(BaseException):
    pass


def odd():
    raise Odd("no Exception")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


def mute():
    raise Mute()


def replaces_exit():
    sys.exit = lambda *_: None
    return towers()
"""
NUMBERS = ("--reference", "train.py:single", "--batch", "train.py:batch")
FAULTS = [RuntimeError("a fault\nof ours"), MemoryError(), RecursionError("too deep")]
# The function of each stage. If the program is still reported: a rule that needs the stage.
STAGES = {
    "placement_checks.targets.importing._load_file": None,
    "placement_checks.capture.programs.build": None,
    "placement_checks.placer.placing.place_async": "placeable",
    "placement_checks.verification.running._trace": "towers-overlap",
    "placement_checks.run.compare.measure.measure": "weights-equal",
    "placement_checks.run.compare.pair.make_runnable": "gradients-equal",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    Path("outputlog").write_bytes((fixtures / "logs/2.20.0/session.log").read_bytes())


@pytest.fixture(params=FAULTS, ids=lambda fault: type(fault).__name__)
def fault(request: pytest.FixtureRequest) -> Exception:
    error: Exception = request.param
    return error


def message_of(fault: Exception) -> str:
    text = f": {fault}".splitlines()[0] if str(fault) else ""
    return f"{type(fault).__name__}{text}"


def error_lines(ran: Ran) -> list[str]:
    """The lines on stderr without lines of TensorFlow's C++, such as the lack of a GPU."""
    return [line for line in ran.err.splitlines() if not re.search(r"\.cc:\d+\] ", line)]


FIX = "set PLACEMENT_CHECKS_DEBUG=1 for the traceback, and report it"


def failing(fault: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise type(fault)(*fault.args)

    return fail


def test_without_a_fault_the_program_is_sound(run: Run) -> None:
    ran = run("verify", "train.py:towers", *NUMBERS)

    assert (ran.status, error_lines(ran)) == (0, [])


@pytest.mark.parametrize("stage", STAGES)
def test_a_failed_stage_is_reported_with_the_rest(
    run: Run, monkeypatch: pytest.MonkeyPatch, stage: str, fault: Exception
) -> None:
    monkeypatch.setattr(stage, failing(fault))

    ran = run("verify", "train.py:towers", "outputlog", *NUMBERS[:2], "--format", "json")

    document = json.loads(ran.out)
    assert ran.status == 2
    assert "Traceback" not in ran.err
    assert any(line.endswith(f": {message_of(fault)}; {FIX}") for line in error_lines(ran))
    assert document["error"]["kind"] == "internal"
    assert document["error"]["message"] == message_of(fault)
    programs = {program["program"]: program["rules"] for program in document["programs"]}
    assert list(programs) == ["train.py:towers"] * bool(STAGES[stage]) + ["outputlog"]
    states = {rule["rule"]: rule["state"] for rule in programs.get("train.py:towers", ())}
    if STAGES[stage]:
        assert states["losses-apart"] == "kept"  # what is asked for is known
        assert states[STAGES[stage]] == "not-checked"


def test_a_log_reader_that_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr("placement_checks.verification.targets.read_logs", failing(fault))
    monkeypatch.setattr("placement_checks.cli.log.read_logs", failing(fault))

    for command in ("verify", "log", "place"):
        ran = run(command, "outputlog")
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.endswith(f"{message_of(fault)}; {FIX}\n")


def test_a_rule_that_fails_is_not_checked_and_the_others_are_judged(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(LossesApart, "check", failing(fault))

    ran = run("verify", "train.py:towers", "--format", "json")

    (program,) = json.loads(ran.out)["programs"]
    rules = {rule["rule"]: rule for rule in program["rules"]}
    assert ran.status == 2
    assert rules["losses-apart"]["state"] == "not-checked"
    assert rules["losses-apart"]["reason"] == f"{message_of(fault)}; {FIX}"
    assert rules["variables-on-host"]["state"] == "kept"
    message = f"losses-apart could not be checked: {message_of(fault)}"
    assert error_lines(ran) == [f"placement-checks: train.py:towers: {message}; {FIX}"]
    assert json.loads(ran.out)["error"] == {
        "kind": "internal",
        "object": "train.py:towers",
        "message": message,
        "fix": FIX,
    }


def test_a_fault_in_several_rules_is_reported_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(TowerAnalysis, "__init__", failing(fault))

    ran = run("verify", "train.py:towers")

    assert ran.status == 2
    assert "BROKEN" not in ran.out
    assert "  KEPT         variables-on-host" in ran.out
    (line,) = error_lines(ran)
    assert "losses-apart, " in line


def test_a_broken_rule_is_shown_with_one_that_failed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LossesApart, "check", failing(RuntimeError("a fault")))
    device = ("--set", "variables-on-host.device=/gpu:0")

    ran = run("verify", "train.py:towers", *device)

    assert ran.status == 2
    assert "  BROKEN       variables-on-host" in ran.out


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_failing_report(
    run: Run, monkeypatch: pytest.MonkeyPatch, output_format: str, fault: Exception
) -> None:
    failing_format = FORMATS[output_format]._replace(write=failing(fault))
    monkeypatch.setattr(f"{formats.__name__}.{output_format}.FORMAT", failing_format)

    ran = run("verify", "outputlog", "--format", output_format)

    assert (ran.status, ran.out) == (2, "")
    assert error_lines(ran) == [f"placement-checks: {message_of(fault)}; {FIX}"]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("verify outputlog", "placement_checks.verification.configuration.load"),
        ("log outputlog", "placement_checks.cli.log.render_text"),
        ("place outputlog", "placement_checks.cli.place.text_of"),
        ("diff outputlog outputlog", "placement_checks.cli.diff.compare"),
        ("diff outputlog outputlog", "placement_checks.cli.diff.render_text"),
        ("explain placeable", "placement_checks.cli.explain.rule_named"),
    ],
)
def test_a_failing_part_of_a_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, part: str, fault: Exception
) -> None:
    monkeypatch.setattr(part, failing(fault))

    ran = run(*command.split())

    assert (ran.status, ran.out) == (2, "")
    assert error_lines(ran) == [f"placement-checks: {message_of(fault)}; {FIX}"]


@pytest.mark.parametrize("command", ["place train.py:towers", "diff train.py:towers outputlog"])
@pytest.mark.parametrize("stage", list(STAGES)[:3])
def test_a_fault_in_other_commands(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, stage: str, fault: Exception
) -> None:
    monkeypatch.setattr(stage, failing(fault))

    ran = run(*command.split())

    assert (ran.status, ran.out) == (2, "")
    assert error_lines(ran) == [f"placement-checks: {message_of(fault)}; {FIX}"]


def test_a_fault_in_timing(run: Run, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    monkeypatch.setattr("placement_checks.run.compare.pair.make_runnable", failing(fault))

    ran = run("time", "train.py:towers", *NUMBERS, "--rounds", 3)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.endswith(f"placement-checks: {message_of(fault)}; {FIX}\n")


def test_the_traceback_is_shown_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEMENT_CHECKS_DEBUG", "1")
    monkeypatch.setattr(LossesApart, "check", failing(RuntimeError("a fault")))
    in_a_rule = run("verify", "train.py:towers")
    monkeypatch.setattr(
        "placement_checks.verification.targets.read_logs", failing(RuntimeError("another"))
    )
    in_a_command = run("place", "outputlog")

    for ran, error in ((in_a_rule, "a fault"), (in_a_command, "another")):
        assert ran.status == 2
        lines = error_lines(ran)
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[-2] == f"RuntimeError: {error}"


def test_a_fault_in_another_process_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEMENT_CHECKS_DEBUG", "1")
    try:
        failing(RuntimeError("a fault"))()
    except RuntimeError as fault:
        error = pickle.loads(pickle.dumps(as_error("train.py", fault)))
    reading = Mock(side_effect=error)
    monkeypatch.setattr("placement_checks.verification.targets.read_logs", reading)

    lines = error_lines(run("place", "outputlog"))

    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == [
        "RuntimeError: a fault",
        f"placement-checks: train.py: RuntimeError: a fault; {FIX}",
    ]


@pytest.mark.parametrize(
    ("target", "options", "deed"),
    [
        ("train.py:exits", (), "the builder called sys.exit(0)"),
        ("train.py:towers", ("--reference", "train.py:exits"), "the builder called sys.exit(0)"),
        (
            "train.py:towers",
            (*NUMBERS[:2], "--batch", "train.py:exits"),
            "batch(rng, 16) called sys.exit(0)",
        ),
        ("leaves.py:build", (), "loading it called sys.exit(0)"),
    ],
)
def test_user_code_that_exits_is_an_error_and_the_others_are_judged(
    run: Run, target: str, options: tuple[str, ...], deed: str
) -> None:
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n")

    ran = run("verify", target, "outputlog", *options, "--format", "json")

    document = json.loads(ran.out)
    assert ran.status == 2
    assert document["error"]["message"] == deed
    assert document["error"]["kind"] == "input"
    assert document["error"]["fix"].startswith("look at ")
    assert document["programs"][-1]["program"] == "outputlog"


@pytest.mark.parametrize("command", ["place train.py:exits", "diff outputlog train.py:exits"])
def test_user_code_that_exits_is_a_failure_of_the_command(run: Run, command: str) -> None:
    ran = run(*command.split())

    assert (ran.status, ran.out) == (2, "")
    assert "the builder called sys.exit(0); look at train.py:" in ran.err


def test_timing_code_that_exits(run: Run) -> None:
    ran = run("time", "train.py:towers", *NUMBERS[:2], "--batch", "train.py:exits")

    assert (ran.status, ran.out) == (2, "")
    assert "called sys.exit(0); look at train.py:" in ran.err


def test_user_code_that_raises_a_base_exception(run: Run) -> None:
    ran = run("verify", "train.py:odd", "outputlog")

    assert ran.status == 2
    assert ran.out.startswith("outputlog on ")
    assert f"placement-checks: train.py:odd: Odd: no Exception; {FIX}\n" in ran.err


def test_an_exception_without_a_message(run: Run) -> None:
    ran = run("verify", "train.py:mute", "outputlog")

    assert ran.status == 2
    assert ran.out.startswith("outputlog on ")
    assert "placement-checks: train.py:mute: the builder raised Mute; look at train.py:" in ran.err


def test_a_program_that_replaces_sys_exit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "exit", sys.exit)
    device = ("--set", "variables-on-host.device=/gpu:0")

    assert run("verify", "train.py:replaces_exit", *device).status == 1


def test_a_dead_placer_leaves_the_requested_devices(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = PlacerError("the placer", "died", "look at its log")
    monkeypatch.setattr("placement_checks.placer.placing.place_async", failing(died))

    ran = run("verify", "train.py:towers")

    assert ran.status == 2
    assert ran.out.startswith("train.py:towers on gpu*2, not placed\n")
    report = " ".join(ran.out.split())
    assert " NOT CHECKED placeable, no-fallback, " in report
    assert ": the placer: died; look at its log " in report
    assert " KEPT losses-apart" in report
    assert error_lines(ran) == ["placement-checks: the placer: died; look at its log"]
