from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.outcomes import HOSTILE, MOVED, SAME, written_as
from support.reports import broken, finding, report

from placement_checks import Verdict
from placement_checks.core.errors import InputError
from placement_checks.report.text.layout import shorten
from placement_checks.util.text import printable


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is one of a checkout, with a program."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\n" * 9)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    return tmp_path


def read(text: str) -> list[tuple[str, dict[str, str], str]]:
    """The commands of an output, as GitHub's runner reads them."""
    return [_command(line) for line in text.removesuffix("\n").split("\n")]


def _command(line: str) -> tuple[str, dict[str, str], str]:
    match = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)
    assert match, line
    properties = dict(part.split("=", 1) for part in match[2].split(","))
    return match[1], {name: _read(value) for name, value in properties.items()}, _read(match[3])


def _read(text: str) -> str:
    for code, letter in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, letter)
    return text


def test_a_group_is_one_error_at_the_users_line() -> None:
    two = [finding(name, consequence="It is slow.") for name in ("v", "w")]

    text = written_as("github", report(broken("variables-on-host", *two)))

    assert text == (
        "::error file=models/a.py,line=1,title=variables-on-host (2 findings)::"
        "v is [on a GPU]%0Alikewise 1 more: w%0AIt is slow.%0Afix: pin it%0Ain p on gpu*2\n"
        "::notice title=placement_checks::1 program, rules: 0 kept, 1 broken, 0 not checked.\n"
    )


@given(st.text())
@example("100%, 50%25: x%0Ay")
def test_any_name_reads_back(name: str) -> None:
    text = written_as("github", report(broken(f"a{name}", finding(name, message=name))))

    (_, properties, message), *_ = read(text)
    assert properties["title"] == f"a{name}" or not name.isprintable()
    assert message.split("\n")[0] == " ".join(map(shorten, printable(name).split(" ")))


def test_a_name_cannot_add_a_command() -> None:
    text = written_as("github", report(broken("a", finding(HOSTILE))), next_step=HOSTILE)

    assert [kind for kind, _, _ in read(text)] == ["error", "notice"]
    assert "\x1b" not in text


def test_the_first_finding_of_each_rule_comes_first() -> None:
    program = report(
        broken("first", *[finding(f"v{n}", group_key=n) for n in range(12)]),
        broken("second", finding("w")),
        broken("third", finding("w", follows="first")),
    )

    commands = read(written_as("github", program))

    titles = [(kind, properties["title"]) for kind, properties, _ in commands]
    assert titles[:3] == [("error", "first"), ("error", "second"), ("error", "first")]
    assert titles[-2:] == [("warning", "third"), ("notice", "placement_checks")]
    assert commands[-2][2] == "third: 1 finding follows from first\nin p on gpu*2"
    assert commands[-1][2].endswith("\nGitHub shows 10 errors of a step; its log has all 13.")


def test_shared_findings_of_programs_come_once_and_first() -> None:
    shared, alone = broken("a", finding("w")), broken("a", finding("v"))
    programs = [report(alone), *(report(shared, program=f"p{n}") for n in range(5))]

    (_, _, first), (_, _, second), _ = read(written_as("github", *programs))

    assert first.endswith("\nin p0 on gpu*2, p1 on gpu*2, p2 on gpu*2 and 2 more")
    assert second.endswith("\nin p on gpu*2")


def test_unchecked_required_rules_are_warnings() -> None:
    unchecked = [Verdict(rule, "not-checked", None, "no reference") for rule in ("a", "b", "c")]

    assert "::warning" not in written_as("github", report(*unchecked))
    (_, _, all_of_them), _ = read(written_as("github", report(*unchecked), require_all=True))
    (_, _, one), _ = read(written_as("github", report(*unchecked), requested=("b",)))
    assert all_of_them == "a, b and c: no reference\nin p on gpu*2"
    assert one == "b: no reference\nin p on gpu*2"


def test_programs_with_the_same_unchecked_rules_share_a_warning() -> None:
    a, b = (Verdict(rule, "not-checked", None, "no reference") for rule in "ab")
    programs = [report(a, b, program="p"), report(a, b, program="q"), report(b, program="r")]

    found = read(written_as("github", *programs, require_all=True))

    assert [text for _, _, text in found[:-1]] == [
        "a and b: no reference\nin p on gpu*2 and q on gpu*2",
        "b: no reference\nin r on gpu*2",
    ]


def test_errors_come_first() -> None:
    error = InputError("b.py", "is not there", "name another", is_predicate=True)

    commands = read(written_as("github", report(broken("a", finding("w"))), errors=[error]))

    assert commands[0] == (
        "error", {"title": "placement_checks"}, "b.py is not there; name another"
    )  # fmt: skip
    assert [kind for kind, _, _ in commands] == ["error", "error", "notice"]


@pytest.mark.parametrize(
    ("line", "program", "properties", "message"),
    [
        ("gone.py:3", "models.py:build", {}, "gone.py:3: w is [on a GPU]"),
        ("<ipython-input-1>:3", "a.py:build", {"file": "models/a.py"}, None),
        ("../../b.py:3", "p", {}, None),
    ],
)
def test_a_line_outside_the_repository_is_in_the_message(
    line: str, program: str, properties: dict[str, str], message: str | None
) -> None:
    program_report = report(broken("a", finding("w", frames=(line,))), program=program)

    (_, found, text), _ = read(written_as("github", program_report))

    assert found == {**properties, "title": "a"}
    assert text.split("\n")[0] == (message or f"{line}: w is [on a GPU]")


def test_without_a_runner_paths_are_relative_to_the_current_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE")

    text = written_as("github", report(broken("a", finding("w"))))

    assert text.startswith("::error file=a.py,line=1,title=a::")


def test_a_difference_from_a_baseline_is_an_error() -> None:
    program = replace(report(Verdict("a", "kept", None)), baseline=MOVED)

    (kind, properties, message), _ = read(written_as("github", program))

    assert (kind, properties) == (
        "error", {"file": "models/a.py", "line": "7", "title": "baseline"}
    )  # fmt: skip
    assert message.split("\n") == [
        "1 moved, 0 new, 0 gone; 9 ops placed as in w.txt", "moved:",
        "  variable w|@you: /cpu:0 -> /gpu:0  (a.py:7)", "in p on gpu*2",
    ]  # fmt: skip
    assert "baseline" not in written_as("github", replace(program, baseline=SAME))
