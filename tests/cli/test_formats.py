"""The formats of `verify`, on a placement log, which needs no TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks.report.formats import FORMATS
from placement_checks.util.text import join_and

SUFFIXES = [format.suffix for format in FORMATS.values() if format.suffix]
LOG = """\
w: (VariableV2): /job:localhost/replica:0/task:0/device:GPU:0
a: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "outputlog").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


@pytest.mark.smoke
@pytest.mark.parametrize("format", FORMATS)
def test_a_report_in_each_format(run: Run, format: str) -> None:
    ran = run("verify", "outputlog", "--format", format)

    assert (ran.status, ran.err) == (1, "")
    assert "variables-on-host" in ran.out


def test_no_two_formats_are_alike(run: Run) -> None:
    written = {run("verify", "outputlog", "--format", format).out for format in FORMATS}

    assert len(written) == len(FORMATS)


@pytest.mark.parametrize("format", FORMATS)
def test_a_report_in_a_file(run: Run, folder: Path, format: str) -> None:
    printed = run("verify", "outputlog", "--format", format).out

    assert run("verify", "outputlog", "--format", format, "--output", "report").out == ""
    assert (folder / "report").read_text() == printed


def test_several_reports_in_one_run(run: Run, folder: Path) -> None:
    files = {"a.txt": "text", "a.json": "json", "a.HTML": "html", "a.md": "markdown"}
    files |= {"a.sarif": "sarif", "a.xml": "junit"}

    ran = run("verify", "outputlog", *(word for name in files for word in ("--output", name)))

    assert (ran.status, ran.out, ran.err) == (1, "", "")
    for name, format in files.items():
        assert (folder / name).read_text() == run("verify", "outputlog", "--format", format).out


@pytest.mark.parametrize(
    ("options", "printed", "files"),
    [
        ("--output r", None, {"r": "text"}),
        ("--output r.sarif --format github", "github", {"r.sarif": "sarif"}),
        ("--output r.md --format markdown", None, {"r.md": "markdown"}),
        ("--output r.log --format json", None, {"r.log": "json"}),
        ("--output r.html --format json", "json", {"r.html": "html"}),
        ("--output r --output r.xml --format github", None, {"r": "github", "r.xml": "junit"}),
        ("--output /dev/stdout --output r.json", "text", {"r.json": "json"}),
    ],
)
def test_the_suffix_of_a_file_decides_and_format_is_for_the_rest(
    run: Run, folder: Path, options: str, printed: str | None, files: dict[str, str]
) -> None:
    ran = run("verify", "outputlog", *options.split())

    assert ran.status == 1
    written = {format: run("verify", "outputlog", "--format", format).out for format in FORMATS}
    assert ran.out == (written[printed] if printed else "")
    for name, format in files.items():
        assert (folder / name).read_text() == written[format]


@pytest.mark.parametrize(
    ("command", "suffixes"),
    [
        ("verify outputlog", join_and(SUFFIXES)),
        ("diff outputlog outputlog", join_and(SUFFIXES)),
        ("place outputlog", ".txt, .json and .html"),
        ("doctor", ".txt and .json"),
    ],
)
def test_an_unknown_suffix_is_an_error(
    run: Run, folder: Path, command: str, suffixes: str
) -> None:
    ran = run(*command.split(), "--output", "a.json", "--output", "report.pdf")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: --output report.pdf has no suffix of a format; use one of "
        f"{suffixes}, or add --format\n"
    )
    assert not (folder / "report.pdf").exists()


def test_two_targets_have_fewer_formats(run: Run) -> None:
    ran = run("diff", "outputlog", "outputlog", "--output", "a.sarif")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: --output a.sarif is for a comparison with a git revision; choose one "
        "of text, json and html, or add --since REV\n"
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("written", ["--format={}", "--format {}"])
def test_an_error_that_ends_the_command_obeys_formats_for_programs(
    run: Run, format: str, written: str
) -> None:
    ran = run("verify", "outputlog", "--set", "nonsense", *written.format(format).split())

    assert ran.status == 2
    (line,) = ran.err.splitlines()
    assert line.startswith("placement-checks: --set nonsense is not of the form ")
    assert ("--set nonsense" in ran.out) is FORMATS[format].has_errors
    assert bool(ran.out) is FORMATS[format].has_errors


def test_the_format_of_the_program_is_not_the_format_of_errors(run: Run) -> None:
    ran = run("verify", "missing.py", "--", "--format", "json")

    assert ran.status == 2
    assert ran.out == ""


def test_sarif_explains_its_rules(run: Run) -> None:
    document = json.loads(run("verify", "outputlog", "--format", "sarif").out)

    rules = {rule["id"]: rule for rule in document["runs"][0]["tool"]["driver"]["rules"]}
    assert rules["one-update"]["shortDescription"]["text"] == (
        "One update per variable and step; the step counter increases by one."
    )


def test_rules_that_must_be_checked_fail_in_each_format(run: Run) -> None:
    call = ("verify", "outputlog", "--rule", "one-update", "--format")

    assert "::warning title=not checked::one-update: " in run(*call, "github").out
    assert '<failure message="not checked: ' in run(*call, "junit").out
    assert "placement_checks: failed" in run(*call, "markdown").out
    document = json.loads(run(*call, "sarif").out)
    (note,) = document["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "warning"


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quiet_leaves_out_programs_that_pass(run: Run, folder: Path, flag: str) -> None:
    (folder / "sound").write_text(LOG.replace("GPU:0", "CPU:0", 1))
    rule = ("--rule", "variables-on-host")

    both = run("verify", "sound", "outputlog", *rule, flag)
    one = run("verify", "sound", *rule, flag)

    assert both.out.startswith("outputlog on ")
    assert both.out.endswith("\n\n2 programs, rules: 1 kept, 1 broken, 0 not checked.\n")
    assert (one.status, one.out) == (0, "1 program, rules: 1 kept, 0 broken, 0 not checked.\n")


def test_quiet_shows_required_rules_that_were_not_checked(run: Run) -> None:
    quiet = ("verify", "outputlog", "-q", "--set", "variables-on-host.device=/gpu:0")

    assert run(*quiet).out.count("\n") == 1
    assert run(*quiet, "--require-all").out.startswith("outputlog on ")


def test_verbose_equals_all(run: Run) -> None:
    everything = run("verify", "outputlog", "--all")

    assert everything.out != run("verify", "outputlog").out
    for flag in ("-v", "--verbose"):
        assert run("verify", "outputlog", flag) == everything
