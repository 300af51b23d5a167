"""Names in graphs and logs, of files and in exceptions cannot drive a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Run
from support.pictures import with_data

PROGRAM = """
import tensorflow as tf

tf1 = tf.compat.v1


def raises():
    raise ValueError("\\x1b[2Jcleared\\u202e")


def builds():
    with tf.device("/gpu:0"):
        tf1.placeholder(tf.float32) + 1
"""
NAMES = ["w\x1b[31mX", "a\nplacement-checks: all is well", "gnp.\u202egpu", "b\x9b2J\x7f"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)


@pytest.fixture
def hostile() -> str:
    """A graph of variables on a GPU, with such names."""
    import tensorflow as tf

    graph = tf.compat.v1.GraphDef()
    for name in NAMES:
        node = graph.node.add(name=name, op="VarHandleOp", device="/device:GPU:0")
        node.attr["dtype"].type = 1
        node.attr["shape"].shape.SetInParent()
        node.attr["shared_name"].s = name.encode()
    Path("hostile.pb").write_bytes(graph.SerializeToString())
    return "hostile.pb"


def assert_printable(text: str) -> None:
    assert [line for line in text.split("\n") if not line.isprintable()] == []


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_the_names_of_a_graph(run: Run, hostile: str, form: str) -> None:
    ran = run("verify", hostile, "--format", form)

    shown = with_data(ran.out)
    assert_printable(shown + ran.err)
    name = json.dumps("w\x1b[31mX")[1:-1] if form == "json" else r"w\x1b[31mX"
    assert name in shown
    assert "\nplacement-checks: all is well" not in shown + ran.err


def test_names_are_escaped_where_a_graph_is_placed(run: Run, hostile: str) -> None:
    ran = run("place", hostile)

    assert_printable(ran.out + ran.err)
    assert r"w\x1b[31mX" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "train.py:raises"),
        ("verify", "nowhere\udcff\x1b[31m.pb"),
        ("log", "nowhere\udcff\x1b[31m.log"),
        ("verify", "train.py:builds", "--rule", "\x1b]0;title\x07"),
        ("verify", "train.py:builds", "--set", "\u202e=1"),
        ("verify", "--\u202e"),
        ("\x1b[31m",),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_names_are_escaped_in_errors(run: Run, arguments: tuple[str, ...], form: str) -> None:
    ran = run(*arguments, "--format", form)

    assert ran.status == 2
    assert_printable(ran.out + ran.err)
    assert "placement-checks: " in ran.err


def test_the_lines_of_a_log_can_be_read_again(run: Run, fixtures: Path) -> None:
    log = fixtures / "logs/2.20.0/session.log"
    lines = run("log", log, "--format", "lines").out
    assert_printable(lines)
    Path("again").write_text(lines)

    again = run("log", "again", "--format", "json").out
    first = run("log", log, "--format", "json").out
    assert json.loads(again)["ops"] == json.loads(first)["ops"]


def test_the_name_of_a_log(run: Run, fixtures: Path) -> None:
    name = "log\udcff\x1b[31m"
    Path(name).write_bytes((fixtures / "logs/2.20.0/session.log").read_bytes())

    for command in (["log"], ["verify"], ["verify", "--format", "json"], ["diff", name]):
        ran = run(*command, name)
        assert_printable(ran.out + ran.err)
        assert r"log\udcff" in ran.out
