"""The copies of one step as a table and as a document."""

from __future__ import annotations

import json

from support.graphs import placement
from support.towers import gradient, program

from placement_checks import Placement
from placement_checks.analysis.step.transfers import copies, sent_tensors
from placement_checks.report.commands.place import render_json, render_text

LINES = {
    **{f"tower_{i}/fc/w/read": "train.py:9 net.py:3" for i in (0, 1)},
    gradient(0, "conv/w"): "train.py:20",
    "sum/conv/w": "train.py:30",
}
SHAPES = {
    **{f"tower_{i}/fc/w/read": (1000, 1000) for i in (0, 1)},
    **{f"tower_{i}/conv/w/read": (250,) for i in (0, 1)},
    **{gradient(i, "conv/w"): (251,) for i in (0, 1)},
}
GRAPH = program(variables=["conv/w", "fc/w"], outputs=SHAPES, lines=LINES)


def text(graph: Placement) -> list[str]:
    return list(render_text(graph, sent_tensors(graph, copies(graph))))


def test_the_table_of_copies() -> None:
    assert text(GRAPH) == [
        "/device:CPU:0 -> /device:GPU:0: 4,001,000 bytes in 2 copies",
        "/device:CPU:0 -> /device:GPU:1: 4,001,000 bytes in 2 copies",
        "/device:GPU:0 -> /device:CPU:0: at least 1,004 bytes in 2 copies, 1 of unknown size",
        "/device:GPU:1 -> /device:CPU:0: at least 1,004 bytes in 2 copies, 1 of unknown size",
        "",
        "layer      forward       average  largest sent at",
        "fc     8.0 MB in 2        ? in 2  net.py:3",
        "conv   2.0 kB in 2   2.0 kB in 2  train.py:20",
        "all    8.0 MB in 4  ≥2.0 kB in 4",
        "? and ≥: some sizes are unknown; --rows N sets the number of rows of the batch",
    ]


def test_many_layers_are_summarized() -> None:
    names = [f"layer{number:02}/w" for number in range(20)]
    graph = program(
        variables=names,
        outputs={
            **{
                f"tower_{i}/{name}/read": (100 - at,)
                for at, name in enumerate(names)
                for i in (0, 1)
            },
            **{gradient(i, name): (1,) for name in names for i in (0, 1)},
        },
    )

    lines = text(graph)

    assert len(lines) == 4 + 2 + 16 + 2
    assert lines[6].startswith("layer00 ")
    assert lines[-3].startswith("layer15 ")
    assert lines[-2].split("  ")[0] == "4 more layers"
    assert lines[-2].endswith("--format json has them")
    assert lines[-1].split() == ["all", "14.5", "kB", "in", "40", "160", "B", "in", "40"]
    rows = json.loads("\n".join(render_json(graph, sent_tensors(graph, copies(graph)))))["layers"]
    assert len(rows) == 20


def test_a_document_has_each_copy() -> None:
    document = json.loads("\n".join(render_json(GRAPH, sent_tensors(GRAPH, copies(GRAPH)))))

    host = "/job:localhost/replica:0/task:0/device"
    assert (document["schema"], document["program"]) == (1, "train.py:build")
    assert (document["machine"], document["placer"]) == ("gpu*2", "phantom")
    assert document["pairs"][0] == {
        "from": f"{host}:CPU:0",
        "to": f"{host}:GPU:0",
        "copies": 2,
        "bytes": 4_001_000,
        "unknown": 0,
    }
    fc, conv = document["layers"]
    assert fc == {
        "layer": "fc",
        "copies": 4,
        "bytes": 8_000_000,
        "unknown": 2,
        "phases": [
            {"phase": "forward", "copies": 2, "bytes": 8_000_000, "unknown": 0},
            {"phase": "average", "copies": 2, "bytes": 0, "unknown": 2},
        ],
        "where": "net.py:3",
    }
    assert conv["where"] == "train.py:20"
    assert document["copies"][1] == {
        "tensor": "tower_0/fc/w/read:0",
        "from": f"{host}:CPU:0",
        "to": f"{host}:GPU:0",
        "bytes": 4_000_000,
        "phase": "forward",
        "layer": "fc",
        "variable": "fc/w",
        "tower": 0,
        "taken_by": "tower_0/fc/w/MatMul",
        "where": "net.py:3",
    }
    gradients = [
        each for each in document["copies"] if each["tensor"] == f"{gradient(1, 'conv/w')}:0"
    ]
    assert [each["where"] for each in gradients] == ["train.py:30"]  # of the op that takes it


def test_a_step_that_copies_nothing() -> None:
    assert text(placement()) == []
