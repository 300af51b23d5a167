"""Groups of findings as lines of text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.reports import finding

from placement_checks import Finding
from placement_checks.report.common.findings import group_findings
from placement_checks.report.text.findings import finding_lines, first_lines, line_counts

LONG = " ".join(["word"] * 300)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(*findings: Finding, everything: bool = False) -> Sequence[str]:
    return [line.text for line in finding_lines(group_findings(findings), everything=everything)]


def source(name: str, *texts: str) -> None:
    Path(name).write_text("\n".join(texts))
    os.utime(name, (1, 1))


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], []),
        ([finding("w")], ["  a.py:1: w is [on a GPU]", "    fix: pin it"]),
        ([finding("w", frames=())], ["  w is [on a GPU]", "    fix: pin it"]),
        (
            [finding("w"), finding("v"), finding("u")],
            ["  a.py:1: w is [on a GPU]", "      likewise 2 more: v, u", "    fix: pin it"],
        ),
        (
            [finding(name) for name in "uvwxyz"],
            [
                "  a.py:1: u is [on a GPU]",
                "      likewise 5 more, such as v, w, x",
                "    fix: pin it",
            ],
        ),
        (
            [finding("w"), finding("w")],
            ["  a.py:1: w is [on a GPU]", "      likewise 1 more", "    fix: pin it"],
        ),
        (
            [finding("w"), finding("v", frames=("a.py:2",)), finding("u", frames=("b.py:2",))],
            [
                "  a.py:1: w is [on a GPU]",
                "      likewise 2 more: v (line 2), u (b.py:2)",
                "    fix: pin it",
            ],
        ),
        (  # the file of a line depends on the lines before it
            [
                finding(n, frames=(f,))
                for n, f in [("w", "a.py:1"), ("v", "b.py:2"), ("u", "a.py:3")]
            ],
            [
                "  a.py:1: w is [on a GPU]",
                "      likewise 2 more: v (b.py:2), u (a.py:3)",
                "    fix: pin it",
            ],
        ),
        (
            [finding("w"), finding("v", fix="drop it")],
            [
                "  a.py:1: w is [on a GPU]",
                "    fix: pin it",
                "  a.py:1: v is [on a GPU]",
                "    fix: drop it",
            ],
        ),
        (
            [finding("w"), finding("v", message="v is [on a TPU]", group_key="TPU")],
            ["  a.py:1: w is [on a GPU]", "  a.py:1: v is [on a TPU]", "    fix: pin it"],
        ),
        (
            [finding("w", path=("x", "y"), consequence="It is slow.")],
            [
                "  a.py:1: w is [on a GPU]",
                "    It is slow.",
                "    fix: pin it",
            ],
        ),
    ],
)
def test_lines_of_findings(findings: Sequence[Finding], expected: Sequence[str]) -> None:
    assert lines(*findings) == expected


def test_the_source_line_and_its_callers() -> None:
    source("model.py", "def layer(x):", "    w = tf.Variable(x)")
    source("train.py", "import model", 'with tf.device(f"/gpu:{i}"):', "    layer(x)")
    found = finding(
        "w", frames=("train.py:7", "train.py:3", "model.py:2"), device_line="train.py:2"
    )

    assert lines(found) == [
        "  model.py:2: w is [on a GPU]",
        "      | w = tf.Variable(x)",
        "      called from train.py:3, line 7",
        '      device requested at train.py:2: with tf.device(f"/gpu:{i}"):',
        "    fix: pin it",
    ]


def test_ops_of_one_device_scope_have_its_line() -> None:
    source("model.py", "w = 1", "v = 2")
    source("train.py", "with tf.device('/gpu:0'):", "    model(x)")
    found = [
        finding(
            name,
            frames=("train.py:2", f"model.py:{n}"),
            device_line="train.py:1",
            is_of_scope=True,
        )
        for n, name in [(1, "w"), (2, "v")]
    ]

    assert lines(*found) == [
        "  train.py:1: w is [on a GPU]",
        "      | with tf.device('/gpu:0'):",
        "      w is created at model.py:1: w = 1",
        "      likewise 1 more: v (model.py:2)",
        "    fix: pin it",
    ]


def test_a_device_has_the_line_that_requests_it() -> None:
    source("train.py", "with tf.device('/gpu:0'):", "    model(x)")
    idle = finding(
        "/GPU:1", op="", frames=("train.py:2",), device_line="train.py:1", is_of_scope=True
    )

    assert lines(idle) == [
        "  train.py:1: /GPU:1 is [on a GPU]",
        "      | with tf.device('/gpu:0'):",
        "    fix: pin it",
    ]


def test_a_group_of_many_lines_has_the_first_one_and_the_common_caller() -> None:
    source("model.py", "w = 1", "v = 2")
    source("train.py", "model(x)", "main()")
    found = [
        finding(name, frames=("train.py:2", "train.py:1", f"model.py:{n}"))
        for n, name in [(1, "w"), (2, "v")]
    ]

    assert lines(*found) == [
        "  model.py:1: w is [on a GPU]",
        "      | w = 1",
        "      all 2 are built through train.py:1: model(x)",
        "      called from line 2",
        "      likewise 1 more: v (line 2)",
        "    fix: pin it",
    ]


def test_the_line_of_the_device_is_not_repeated() -> None:
    assert lines(finding("w", device_line="a.py:1")) == lines(finding("w"))


def test_a_path_is_complete_in_the_full_text() -> None:
    assert lines(finding("w", path=("x", "y")))[1:-1] == []
    assert lines(finding("w", path=("x", "y")), everything=True)[1:-1] == ["      x", "      y"]


def test_the_path_of_an_executed_finding_begins_with_its_first_step() -> None:
    rows = finding("w", evidence="executed", path=("0", "1", "2", "3", "4"))
    assert lines(rows)[1:-1] == ["      0", "      1", "      2", "      3"]


def test_a_long_call_stack() -> None:
    frames = tuple(f"a.py:{number}" for number in range(9, 0, -1))
    assert lines(finding("w", frames=frames))[1] == (
        "      called from line 2, line 3, line 4, line 5, …"
    )
    assert lines(finding("w", frames=frames), everything=True)[1].endswith("line 8, line 9")


def test_the_full_text_has_all_names() -> None:
    shown = lines(*(finding(f"v{number}") for number in range(100)), everything=True)
    names = " ".join(shown[1:-1]).split("more: ")[1]
    assert names.split() == [f"v{number}," for number in range(1, 99)] + ["v99"]


def test_long_sentences_are_wrapped_and_at_last_cut() -> None:
    found = finding("w", message=LONG, consequence=LONG, fix=LONG, path=(LONG,))

    brief = lines(found)
    assert len(brief) == 6 + 3 + 4
    assert sum(line.endswith(" …") for line in brief) == 3
    everything = " ".join(lines(found, everything=True))
    assert everything.split().count("word") == 1200


def test_long_names_are_shortened() -> None:
    name = "a/very/long/scope" * 20
    shown = lines(finding(name), finding(f"{name}_1", message=f"{name}_1 is [on a GPU]"))
    assert max(map(len, shown)) <= 130
    assert "…" in shown[1]


def test_the_first_object_and_the_number_of_others() -> None:
    groups = group_findings(
        [finding("w"), finding("v"), *(finding(n, message=f"{n}?", group_key=n) for n in "abc")]
    )
    assert [line.text for line in first_lines(groups, 2, "--all shows them")] == [
        "  a.py:1: w is [on a GPU]",
        "      likewise 1 more: v",
        "  a.py:1: a?",
        "    fix: pin it",
        "  and 2 findings more (--all shows them)",
    ]
    assert "more (" not in str(list(first_lines(groups, 4, "")))
    assert list(line_counts(groups)) == [3, 2, 2, 2]


def test_the_line_of_a_library_follows_the_line_that_calls_it() -> None:
    found = finding("w", frames=("train.py:7", "train.py:3"), library_line="../slim/layers.py:5")

    text = lines(found)

    assert text[0].startswith("  train.py:3: ")
    assert text[1] == "      in ../slim/layers.py:5, called from this line"
