"""Bad input: one clear line on stderr, status 2, nothing on standard output."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from support.commands import Run

from placement_checks.cli import cli
from placement_checks.util.text import join_and

BUILDERS = """
import tensorflow as tf

tf1 = tf.compat.v1


def layer():
    raise KeyError("no such layer")


def raises():
    layer()


def quits():
    raise SystemExit(3)


def nothing():
    pass


def nonsense():
    tf1.placeholder(tf.float32)
    return 42


def wants(x, y=1, *, z):
    pass


def raw_device():
    with tf1.device(lambda op: "//cpu:0"):
        tf1.placeholder(tf.float32, name="x")


def no_device():
    with tf1.device(lambda op: "bogus"):
        tf1.placeholder(tf.float32, name="x")


def policy():
    tf1.placeholder(tf.float32)
    return {"policy": {"variables-on-hosts": {}}}


def builds():
    with tf.device("/gpu:0"):
        tf1.placeholder(tf.float32) + 1


not_a_function = 3
"""
DEVICES = "write it like /cpu:0, /gpu:1 or /job:ps/task:0/device:CPU:0"
GRAPH = "cannot be read as a graph: "
AGAIN = "; write the file again, it may be truncated"

TARGETS = {
    "nosuch.py:f": "nosuch.py: there is no such file",
    "builder.py:raises": "builder.py: there is no such file; did you mean 'builders.py'?",
    "builders.py": "builders.py ended without a training step: it opened no session and "
    "called no tf.function; pass the arguments for training after --, or name the "
    "function "
    "that builds its graph, builders.py:build",
    "builders.py:build": "builders.py:build: there is no function 'build' in it; "
    "did you mean 'builds'?",
    "builders.py:not_a_function": "builders.py:not_a_function: 'not_a_function' is of type "
    "int, not a function; name a function",
    "builders.py:raises": "builders.py:raises: the builder raised KeyError: 'no such layer'; "
    "look at builders.py:8",
    "builders.py:quits": "builders.py:quits: the builder called sys.exit(3); "
    "look at builders.py:16",
    "builders.py:nothing": "builders.py:nothing: the builder built no graph; build ops "
    "in the default graph or in a tf.Graph() of its own, or call the function that trains",
    "builders.py:nonsense": "builders.py:nonsense: the builder returned 42, which does not "
    "describe a step; return nothing, the train op, or a mapping such as "
    "{'train_op': …, 'loss': …}",
    "builders.py:wants": "builders.py:wants: the builder requires 'x' and 'z', which the "
    "target lacks; add (x=…, z=…) to the function's name, or give it a default",
    "builders.py:wants(w=1)": "builders.py:wants(w=1): the function takes no 'w'; "
    "it takes x, y and z",
    "builders.py:raw_device": "builders.py:raw_device: op 'x' (builders.py:34) requests the "
    f"device '//cpu:0', which TensorFlow cannot read; {DEVICES}",
    "builders.py:no_device": "builders.py:no_device: op 'x' (builders.py:39) requests the device "
    f"'bogus', but 'bogus' is not part of a device name; {DEVICES}",
    "builders.py:policy": "policy of builders.py:policy: variables-on-hosts is not a known "
    "rule; did you mean 'variables-on-host'?",
    "broken.py:f": "broken.py: loading it raised SyntaxError: invalid syntax (broken.py, line 1)",
    "no.such.module:f": "no.such.module:f: there is no module 'no.such.module'; run it from the "
    "root "
    "of the project, or name the file: path/to/file.py:function",
    "json:nope": "json:nope: there is no function 'nope' in it; "
    "name the function that builds the graph",
    "word": "word is not a target; write path/to/file.py, path/to/file.py:function, "
    "package.module:function or the path of a graph",
    "empty": "empty is a directory without a saved_model.pb; name a SavedModel",
    "nosuch.pb": "nosuch.pb: there is no such file; check the path",
    "noise.pb": f"noise.pb {GRAPH}Error parsing message%%{AGAIN}",
    "noise.meta": f"noise.meta {GRAPH}Error parsing message%%{AGAIN}",
    "nothing.pb": f"nothing.pb {GRAPH}it contains no ops{AGAIN}",
    "wrong.pbtxt": f"wrong.pbtxt {GRAPH}1:14 : %%Expected string but found: '}}'{AGAIN}",
    "huge.pb": "huge.pb is larger than 2 GB, the limit of protobuf; save it without its constants",
}
HOST = "one host has between 1 and 256"
MACHINE = 'write it like "gpu*4" or "ps*2; worker*8: gpu*4"'
OPTIONS = {
    "--gpus 0": f"0 GPUs: {HOST}; give 1 or more; a program for CPUs alone has no towers to check",
    "--gpus 10000": f'10000 GPUs: {HOST}; describe a cluster with --machine "worker*64: gpu*8"',
    "--gpus two": "%%'two' is not a valid integer; see placement-checks verify --help",
    "--gpus 2 --machine gpu*2": "--gpus and --machine are mutually exclusive; give one of them",
    "--machine dgx1": f"machine 'dgx1': 'dgx1' is not a preset, 'dgx-1' is; {MACHINE}",
    "--machine gpuu*4": "machine 'gpuu*4': 'gpuu' is not a type of device; did you mean 'gpu*4'? "
    "A job of that name is written 'gpuu*4: cpu*1'",
    "--machine worker*2:tpu": f"machine 'worker*2:tpu': 'tpu' is not a list of cpu*N and gpu*N; "
    f"{MACHINE}",
    "--rule variables-on-hots": "rule 'variables-on-hots' is not a known rule; "
    "did you mean 'variables-on-host'?",
    "--set device=/gpu:0": "--set device=/gpu:0 is not of the form RULE.FIELD=VALUE; write it "
    "like --set variables-on-host.device=/gpu:0",
    "--set variables-on-host.devise=/gpu:0": "--set variables-on-host.devise is not a known "
    "field; did you mean 'device'?",
    "--set variables-on-host.device=/gqu:0": "--set variables-on-host.device: '/gqu:0': 'gqu:0' "
    f"is not part of a device name; {DEVICES}",
    "--nope": "No such option '--nope'%%; see placement-checks verify --help; arguments of "
    "the program follow --: -- --nope",
    "--gpu 2": "No such option '--gpu'%%; see placement-checks verify --help",
    "--output nowhere/report": "--output nowhere/report: No such file or directory",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("builders.py").write_text(BUILDERS)
    Path("broken.py").write_text("x =\n")
    Path("empty").mkdir()
    Path("noise.pb").write_text("no protobuf")
    Path("noise.meta").write_bytes(b"\xff" * 100)
    Path("nothing.pb").write_bytes(b"")
    Path("wrong.pbtxt").write_text("node { name: }")
    Path("huge.pb").touch()
    os.truncate("huge.pb", 2200 * 10**6)  # a hole, no bytes


def matches(line: str, pattern: str) -> bool:
    """Whether they are equal; ``%%`` in the pattern matches any text."""
    begin, anything, end = pattern.partition("%%")
    return line.startswith(begin) and line.endswith(end) if anything else line == pattern


@pytest.mark.parametrize("target", TARGETS)
def test_an_invalid_target(run: Run, target: str) -> None:
    ran = run("verify", target)

    assert (ran.status, ran.out) == (2, "")
    line = ran.err.splitlines()[-1]
    assert line.startswith("placement-checks: ")
    assert matches(line.removeprefix("placement-checks: "), TARGETS[target]), line


@pytest.mark.parametrize("options", OPTIONS)
def test_invalid_options(run: Run, options: str) -> None:
    ran = run("verify", "builders.py:builds", *options.split())

    assert (ran.status, ran.out) == (2, "")
    line = ran.err.splitlines()[-1]
    assert matches(line.removeprefix("placement-checks: "), OPTIONS[options]), line


def test_the_traceback_of_a_builder_is_shortened_to_the_users_frames(run: Run) -> None:
    lines = [
        line for line in run("verify", "builders.py:raises").err.splitlines() if "^" not in line
    ]

    assert [line.strip().rpartition(os.sep)[2] for line in lines[:-1]] == [
        'builders.py", line 12, in raises',
        "layer()",
        'builders.py", line 8, in layer',
        'raise KeyError("no such layer")',
        "KeyError: 'no such layer'",
    ]


def test_errors_obey_the_format_and_take_one_line_on_stderr(run: Run) -> None:
    ran = run("verify", "builders.py:raises", "--format", "json")

    assert json.loads(ran.out) == {
        "schema": 2,
        "error": {
            "kind": "input",
            "object": "builders.py:raises",
            "message": "the builder raised KeyError: 'no such layer'",
            "fix": "look at builders.py:8",
        },
    }
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--gpus", "0"), "usage"),
        (("--nope",), "usage"),
        (("--set", "variables-on-host.devise=x"), "config"),
    ],
)
def test_errors_have_a_kind(run: Run, arguments: tuple[str, ...], kind: str) -> None:
    ran = run("verify", "builders.py:builds", *arguments, "--format=json")

    assert json.loads(ran.out)["error"]["kind"] == kind


def test_without_targets_and_configured_programs(run: Run) -> None:
    ran = run("verify")

    assert ran.status == 2
    assert ran.err == (
        "placement-checks: no target is given; name a target such as train.py:build_towers\n"
    )


def test_all_errors_of_the_configuration_are_reported_at_once(run: Run) -> None:
    Path("pyproject.toml").write_text(
        "[tool.placement_checks]\ngpu = 2\nsoft = 'yes'\nprograms = [{gpus = 0}]\n"
        "policy.variables-on-host.device = '/gqu:0'\n"
    )

    ran = run("verify", "builders.py:builds")

    assert ran.status == 2
    for field in (".gpu ", ".soft:", ".programs[0] ", ".policy.variables-on-host.device:"):
        assert f"tool.placement_checks{field}" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ("verfy builders.py:builds", "did you mean 'verify'?"),
        ("rule", "did you mean 'rules'?"),
        ("xyz", f"the commands are {join_and(cli.list_commands(click.Context(cli)))}"),
        (
            "builders.py:builds --gpus 4",
            "did you mean: placement-checks verify builders.py:builds --gpus 4",
        ),
        (
            "package.module:build(n='a')",
            """did you mean: placement-checks verify 'package.module:build(n='"'"'a'"'"')'""",
        ),
        ("saved", "did you mean: placement-checks verify saved"),
    ],
)
def test_an_unknown_command_has_a_suggestion(run: Run, arguments: str, fix: str) -> None:
    Path("saved").mkdir()
    name, *more = arguments.split(" ")

    ran = run(name, *more)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("placement-checks: ")
    assert ran.err.endswith(f" is not a command; {fix}\n")


def test_a_call_without_arguments_shows_help_and_a_first_command(run: Run) -> None:
    ran = run()

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Usage: placement-checks ")
    assert ran.err.endswith(
        "\nplacement-checks: no command is given; begin with: placement-checks verify train.py\n"
    )


@pytest.mark.parametrize(
    "command", ["", "verify", "time", "place", "log", "diff", "rules", "explain"]
)
def test_every_help_explains_the_exit_status(run: Run, command: str) -> None:
    ran = run(*command.split(), "--help")

    assert (ran.status, ran.err) == (0, "")
    assert "The exit status" in ran.out
