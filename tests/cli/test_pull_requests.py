"""The documented workflow keeps one comment on a pull request."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.documents import ROOT, blocks

# Records its arguments and the text that it is given, and answers with the IDs of comments.
GH = """#!/bin/sh
echo "$@" >> calls
for argument; do case "$argument" in body=@*) cat "${argument#body=@}" >> bodies;; esac; done
case "$*" in *--paginate*) cat ids;; esac
"""
COMMAND = """#!/bin/sh
echo "$@" >> calls
for last; do :; done
echo "the report" > "$last"
exit $WANTED
"""
COMMENTS = "repos/a/b/issues/7/comments"


def scripts() -> tuple[str, str]:
    """The scripts of the workflow's last two steps."""
    (block,) = [
        each
        for each in blocks(ROOT / "docs/ci.md")
        if each.language == "yaml" and "on: pull_request" in each.text
    ]
    found = re.findall(r"run: \|\n((?: {10}.*\n)+)", block.text)
    compare, comment = (re.sub(r"^ {10}", "", each, flags=re.MULTILINE) for each in found)
    return compare, comment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("gh", GH), ("placement-checks", COMMAND)):
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    Path("ids").write_text("")
    return tmp_path


def run(script: str, **variables: str) -> int:
    environment = {**os.environ, "PATH": f"{Path.cwd()}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", "-e", "-c", script], env=environment, check=False).returncode


@pytest.mark.parametrize(("status", "fails"), [(0, False), (1, False), (2, True)])
def test_the_comparison(folder: Path, status: int, fails: bool) -> None:
    files = {"GITHUB_STEP_SUMMARY": "summary", "GITHUB_ENV": "variables"}

    assert bool(run(scripts()[0], WANTED=str(status), **files)) == fails

    assert Path("calls").read_text() == "diff --since HEAD^ --output changes.md\n"
    assert Path("summary").read_text() == "the report\n"
    assert Path("variables").read_text() == f"STATUS={status}\n"


@pytest.mark.parametrize(
    ("ids", "status", "method", "address"),
    [
        ("", "1", "POST", COMMENTS),
        ("", "0", "", ""),
        ("12\n15\n", "1", "PATCH", "repos/a/b/issues/comments/12"),
        ("12\n", "0", "PATCH", "repos/a/b/issues/comments/12"),
    ],
)
def test_the_comment(folder: Path, ids: str, status: str, method: str, address: str) -> None:
    Path("ids").write_text(ids)
    Path("changes.md").write_text("the report\n")

    assert run(scripts()[1], STATUS=status, REPOSITORY="repos/a/b", NUMBER="7") == 0

    listing, *others = Path("calls").read_text().splitlines()
    assert listing.startswith(f"api --paginate {COMMENTS} --jq ")
    assert 'startswith("<!-- placement-checks -->")' in listing
    assert others == ([f"api --method {method} {address} -F body=@comment.md"] if method else [])
    if method:
        assert Path("bodies").read_text() == "<!-- placement-checks -->\nthe report\n"
