from __future__ import annotations

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support.outcomes import HOSTILE, MOVED, SAME, written_as
from support.reports import broken, finding, report

from placement_checks import Verdict
from placement_checks.core.baseline import Change, Difference
from placement_checks.core.errors import PlacementError
from placement_checks.core.results import Report
from placement_checks.report.text.findings import one_line as told_as

OURS = {"b", "br", "code", "details", "p", "summary"}
MARKDOWNS = {"p", "strong", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = '<b>' | y\n")
    os.utime("a.py", (0, 0))  # not changed since the program was built


class _Read(HTMLParser):
    """The tags of a text, and the text outside of code."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.plain = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.plain += "\n"
        if tag != "br":
            self.open.append(tag)
        assert attrs in ([], [("open", None)])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\u200b", "")
        if "code" not in self.open:
            self.plain += data


def read(text: str) -> _Read:
    parser = _Read()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert {*parser.tags} <= OURS | MARKDOWNS
    return parser


def test_a_comment() -> None:
    two = [finding(name, consequence="It is slow.") for name in ("v", "w")]
    one = report(broken("variables-on-host", *two), Verdict("b", "not-checked", None, "why"))

    assert written_as("markdown", one, next_step="next: edit a.py:1") == (
        "**placement_checks: failed.** 1 program, rules: 0 kept, 1 broken, 1 not checked.\n"
        "\n"
        "| program | broken | kept | not checked |\n"
        "|---|---|---|---|\n"
        "| <code>p on gpu&#42;2</code> | variables-on-host | 0 | 1 |\n"
        "\n"
        "<details open><summary><b>variables-on-host (2 findings)</b> <code>a.py:1</code>: "
        "v is [on a GPU]</summary><code>x = '&lt;b&gt;' | y</code><br>likewise 1 more: w<br>"
        "It is slow.<br>fix: pin it</details>\n"
        "\n"
        "next: edit a.py:1\n"
    )


def test_a_sound_program() -> None:
    comment = written_as("markdown", report(Verdict("a", "kept", None)))

    assert comment.startswith("**placement_checks: passed.** 1 program, rules: 1 kept, 0 broken")
    assert comment.count("\n") == 5


def test_unchecked_required_rules_are_a_failure() -> None:
    open_one = report(Verdict("a", "kept", None), Verdict("b", "not-checked", None, "why"))

    assert "passed" in written_as("markdown", open_one)
    comment = written_as("markdown", open_one, require_all=True)
    assert "failed" in comment
    assert "<summary><b>not checked</b>: b</summary>b: why, in p on gpu*2</details>" in comment


def many(text: str) -> list[Report]:
    """So much of everything that nothing fits."""
    rules = [
        broken(f"rule-{rule}", *[finding(f"{text}{n}", group_key=n, fix=text) for n in range(4)])
        for rule in range(10)
    ]
    follows = [broken(f"c{n}", finding(text, follows="rule-1")) for n in range(9)]
    programs = [report(*rules, *follows, program=f"{text}{n}") for n in range(10)]
    changes = [Change("ops", f"{text}{n}", text, text) for n in range(30)]
    moved = Difference("w.txt", "p", 9, changes, changes, changes)
    return [replace(program, baseline=moved) for program in programs]


@pytest.mark.parametrize("text", ["v", "<" * 5000, "w " * 3000, "< " * 3000, HOSTILE * 90])
def test_the_length_of_a_comment_is_limited(text: str) -> None:
    errors = [PlacementError(f"p{n}", text) for n in range(9)]
    comment = written_as(
        "markdown", *many(text), errors=errors, require_all=True, next_step=f"next: {text}"
    )

    assert comment.count("\n") <= 40
    assert len(comment) < 65_536
    assert "and 2 programs more" in comment
    assert re.search(r"<p>and [\d,]+ findings more</p>", comment)
    assert "<p>and 6 errors more</p>" in comment
    read(comment)


@given(st.text() | st.text("ab1|`*_<>[]()@#&;!~\\$:/.-+= \n"))
@example(HOSTILE)
@example("</code></summary></details>")
@example(":100: www.x.y $x$ GH-1 o/r#2")
@example("* a\n\n# b")
def test_any_name_is_shown_as_text(name: str) -> None:
    comment = written_as(
        "markdown",
        report(broken("a", finding(name, fix=name, consequence=name)), program=name),
        next_step=f"next: {name}",
        errors=[PlacementError(name, name)],
    )

    page = read(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(comment))
    assert page.tags[:2] == ["p", "strong"]
    assert (page.tags.count("table"), page.tags.count("td"), page.tags.count("details")) == (
        1,
        4,
        1,
    )
    assert not re.search(r"@\w|#\d|://|www\.|GH-|:[\w+-]+:|\$\w", page.plain)
    shown = " ".join(page.text.split())
    assert shown.count(" ".join(told_as(name).split())) >= 5


def test_a_hostile_name_mentions_nobody() -> None:
    comment = written_as("markdown", report(broken("a", finding(HOSTILE))), next_step=HOSTILE)

    plain = read(comment).plain
    assert "@\u200byou #\u200b1 https:\u200b//x.y" in plain
    assert "\x1b" not in comment


def test_programs_with_most_broken_rules_are_in_the_table() -> None:
    programs = [
        report(*[broken(f"r{rule}", finding("w")) for rule in range(n)], program=f"p{n}")
        for n in range(10)
    ]
    rows = re.findall(r"<code>(p\d)", written_as("markdown", *programs))

    assert rows == [f"p{n}" for n in range(2, 10)]


def test_a_difference_from_a_baseline_is_folded() -> None:
    program = report(Verdict("a", "kept", None))

    comment = written_as("markdown", replace(program, baseline=MOVED))
    assert comment.startswith("**placement_checks: failed.**")
    assert (
        "<details><summary><b>baseline</b>: 1 moved, 0 new, 0 gone; 9 ops placed as in w.txt"
        "</summary>moved:<br>" in comment
    )
    assert "variable w|@\u200byou: /cpu:0 -&gt; /gpu:0" in comment
    assert "baseline" not in written_as("markdown", replace(program, baseline=SAME))
