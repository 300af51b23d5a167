"""``verify --declare``: the printed lines, in a pyproject.toml, keep the rules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.commands import Run
from support.tower_programs import towers, whole

# Programs, each with the rules that stay broken because no policy can declare them.
PROGRAMS = {
    "device_index_off_by_one": [],
    "memory_all": [],
    "no_gpu_kernel:build": ["placeable"],
    "optimizer_per_tower": ["equal-to-one-gpu", "one-update"],
    "scope_per_tower": [],
    "trainable_not_global": ["variables-shared"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with the defects."""
    monkeypatch.chdir(tmp_path)
    for file in (fixtures / "defects" / "graph").glob("*.py"):
        shutil.copy(file, tmp_path)


def target(program: str) -> str:
    file, _, builder = program.partition(":")
    return f"{file}.py:{builder or 'build_towers'}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_declared_rules_are_kept(run: Run, program: str) -> None:
    declared = run("verify", target(program), "--declare")
    Path("pyproject.toml").write_text(declared.out)

    ran = run("verify", target(program), "--format", "json")

    (judged,) = json.loads(ran.out)["programs"]
    broken = [rule["rule"] for rule in judged["rules"] if rule["state"] == "broken"]
    assert sorted(broken) == sorted(PROGRAMS[program])
    assert declared.status == ran.status == bool(broken)


def test_several_programs_become_entries(run: Run) -> None:
    targets = [target("scope_per_tower"), target("memory_all")]
    declared = run("verify", *targets, "--gpus", 3, "--declare")
    Path("pyproject.toml").write_text(declared.out)

    ran = run("verify", "--format", "json")

    assert (declared.status, ran.status) == (0, 0)
    assert [each["machine"] for each in json.loads(ran.out)["programs"]] == ["gpu*3"] * 2


def test_whole_programs_become_entries_with_their_arguments(run: Run) -> None:
    for name in ("a.py", "b.py"):
        Path(name).write_text(whole(towers(tower_on="0")))
    declared = run("verify", "a.py", "b.py", "--declare", "--", "{gpus}")
    Path("pyproject.toml").write_text(declared.out)

    assert (declared.status, run("verify").status) == (0, 0)


def test_declarations_in_a_file(run: Run) -> None:
    ran = run("verify", target("memory_all"), "--declare", "--output", "lines.toml")

    assert (ran.status, ran.out) == (0, "")
    assert "fraction = 1.0" in Path("lines.toml").read_text()


BAD = {
    "--rule placeable": "--declare: no rule is broken, so there is nothing to declare; omit it",
    "--format json": "--declare prints TOML, not json; omit --format",
    "--format html": "--declare prints TOML, not html; omit --format",
}


@pytest.mark.parametrize("options", BAD)
def test_nothing_to_declare(run: Run, options: str) -> None:
    ran = run("verify", target("memory_all"), "--declare", *options.split())

    assert ran.status == 2
    assert ran.err.splitlines()[-1] == f"placement-checks: {BAD[options]}"


def test_an_invalid_target_is_the_only_error(run: Run) -> None:
    ran = run("verify", "nowhere/at_all.py:build", "--declare")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("placement-checks: nowhere/at_all.py: there is no")


def test_an_error_is_reported_if_no_rule_is_broken(run: Run) -> None:
    sound = (target("memory_all"), "--rule", "placeable")

    ran = run("verify", "nowhere/at_all.py:build", *sound, "--declare")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("placement-checks: nowhere/at_all.py: there is no")


def test_a_report_ends_with_what_to_do_next(run: Run) -> None:
    ran = run("verify", target("scope_per_tower"))

    line = ran.out.splitlines()[-1]
    assert line.startswith("next: edit scope_per_tower.py:17, which breaks variables-shared and 1")


def test_a_configured_program_has_no_entry(run: Run) -> None:
    Path("pyproject.toml").write_text(
        '[tool.placement_checks]\nprograms = ["memory_all.py:build_towers"]\n'
        'without = ["gradients-equal", "session-memory"]\n'
    )

    assert run("verify").out.splitlines()[-1].startswith("1 program, rules: ")
    named = run("verify", target("memory_all")).out
    assert named.splitlines()[-1].startswith("1 program, rules: ")
    Path("pyproject.toml").unlink()
    options = ("--without", "gradients-equal", "--without", "session-memory")
    alone = run("verify", target("memory_all"), *options).out
    assert "next: add it to pyproject.toml:\n[tool.placement_checks]\nprograms = " in alone
    of_one_rule = run("verify", target("memory_all"), "--rule", "placeable").out
    assert of_one_rule.splitlines()[-1].startswith("1 program, rules: ")
