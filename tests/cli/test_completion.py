"""Shell completion: by click's protocol, and in the installed shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks import RULES

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command as an executable on the path."""
    script = tmp_path / "bin" / "placement-checks"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m placement_checks "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return script


def offered(run: Run, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """The completions that bash gets for the end of a line: the kind and the text of each."""
    words = line.split(" ")
    with monkeypatch.context() as patch:
        patch.setenv("_PLACEMENT_CHECKS_COMPLETE", "bash_complete")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(words) - 1))
        ran = run()
    assert (ran.status, ran.err) == (0, "")
    return ran.out.split()


@pytest.mark.parametrize("before", ["verify --rule", "verify x.py --without", "explain"])
def test_rules_are_completed(run: Run, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    def names(text: str) -> list[str]:
        line = f"placement-checks {before} {text}"
        return [word.removeprefix("plain,") for word in offered(run, monkeypatch, line)]

    assert names("") == list(RULES)
    assert names("variables-") == ["variables-on-host", "variables-shared"]
    assert names("nothing") == []


@pytest.mark.parametrize(
    "before",
    ["verify", "verify --reference", "verify --output", "log", "place", "time", "diff a",
     "explain w"],
)  # fmt: skip
def test_the_shell_completes_files(run: Run, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    assert offered(run, monkeypatch, f"placement-checks {before} tr") == ["file,tr"]


def test_commands_options_and_choices_are_completed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered(run, monkeypatch, "placement-checks com") == ["plain,completion"]
    assert offered(run, monkeypatch, "placement-checks verify --req") == ["plain,--require-all"]
    line = "placement-checks verify --format s"
    assert offered(run, monkeypatch, line) == ["plain,sarif"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_asks_the_command(run: Run, shell: str) -> None:
    ran = run("completion", shell)

    assert ran.status == 0
    assert f"_PLACEMENT_CHECKS_COMPLETE={shell}_complete" in ran.out


# Code before and after the script. Without a line editor, zsh prints its completions.
AROUND = {
    "bash": (
        "",
        "COMP_WORDS=(placement-checks verify --rule var); COMP_CWORD=3\n"
        '_placement_checks_completion placement-checks; printf "%s\\n" "${COMPREPLY[@]}"',
    ),
    "zsh": (
        "compdef() {}; compadd() { print -l $completions }",
        "words=(placement-checks verify --rule var); CURRENT=4; _placement_checks_completion",
    ),
    "fish": ("", 'complete -C "placement-checks verify --rule var"'),
}
QUIET = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_a_rule(run: Run, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    before, after = AROUND[shell]
    script.write_text("\n".join([before, run("completion", shell).out, after]))

    call = [shell, *QUIET[shell], str(script)]
    ran = subprocess.run(call, capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["variables-on-host", "variables-shared"]
    assert ran.stderr == ""
