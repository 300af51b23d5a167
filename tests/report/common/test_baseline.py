"""The text and JSON of a difference from a baseline."""

from __future__ import annotations

import json

from placement_checks.core.baseline import Change, Copies, Crossing, Difference
from placement_checks.report.common.baseline import render_json, render_text

VARIABLE = Change(
    "variable",
    "variable w",
    "/cpu:0",
    "/gpu:0",
    ["w"],
    "16 bytes",
    "net.py:4",
    ["variables-on-host"],
)
DIFFERENT = Difference(
    "placements/mnist.txt",
    "train.py:build",
    801,
    [VARIABLE],
    [Change("ops", "summaries", "", "/gpu:0", ["a"], "1 op: ScalarSummary a")],
    [Change("variable", "variable v (float32[4])", "/cpu:0", "", ["v"])],
    [
        Crossing("/cpu:0", "/gpu:1", Copies(11, 15, 0), Copies(13, 1_240_364, 1)),
        Crossing("/gpu:0", "/gpu:1", Copies(0, 0, 0), Copies(1, 0, 1)),
    ],
    ["2 variables renamed: a -> b, c -> d"],
)
TEXT = """\
1 moved, 1 new, 1 gone; 801 ops placed as in placements/mnist.txt
moved:
  variable w: /cpu:0 -> /gpu:0  (16 bytes; net.py:4) [breaks variables-on-host]
new:
  summaries on /gpu:0  (1 op: ScalarSummary a)
gone:
  variable v (float32[4]), was on /cpu:0
more data copied in each step:
  /cpu:0 -> /gpu:1: 1,240,364 bytes in 13 copies, 1 of unknown size (was 15 bytes in 11 copies)
  /gpu:0 -> /gpu:1: 1 copy of unknown size (was none)
other changes, on the same devices:
  2 variables renamed: a -> b, c -> d"""


def test_the_text_of_a_difference() -> None:
    assert render_text(DIFFERENT) == TEXT


def test_nothing_moved() -> None:
    same = Difference("placements/mnist.txt", "train.py:build", 1, notes=["one note"])

    assert render_text(same) == (
        "nothing has moved: 1 op placed as in placements/mnist.txt\n"
        "other changes, on the same devices:\n  one note"
    )


def test_a_missing_tower_comes_first() -> None:
    gone = Difference("m.txt", "p", 1, [VARIABLE], gone=[Change("tower", "tower 1", "/gpu:1", "")])

    assert render_text(gone).split("\n")[1:3] == ["gone:", "  tower 1, was on /gpu:1"]


def test_the_first_ten_are_listed() -> None:
    many = Difference("m.txt", "p", 1, [VARIABLE] * 12)

    assert render_text(many).split("\n")[-1] == "  and 2 more"
    assert len(render_text(many, 12).split("\n")) == 14


def test_names_are_escaped() -> None:
    hostile = Difference("m.txt", "p", 1, [Change("ops", "a\x1b[31m\nb", "/cpu:0", "/gpu:0")])

    assert "a\\x1b[31m\\nb: /cpu:0 -> /gpu:0" in render_text(hostile)


def test_the_json_document() -> None:
    document = json.loads(render_json(DIFFERENT))

    assert document.pop("versions").keys() == {"placement_checks", "tensorflow"}
    assert document["moved"] == [
        {
            "kind": "variable",
            "what": "variable w",
            "old": "/cpu:0",
            "new": "/gpu:0",
            "names": ["w"],
            "note": "16 bytes",
            "where": "net.py:4",
            "rules": ["variables-on-host"],
        }
    ]
    assert document["crosses"][1] == {
        "source": "/gpu:0",
        "to": "/gpu:1",
        "old": {"copies": 0, "bytes": 0, "unknown": 0},
        "new": {"copies": 1, "bytes": 0, "unknown": 1},
    }
    assert document.keys() == {
        *("schema", "baseline", "program", "same", "moved", "new", "gone", "crosses", "notes")
    }
