"""Commands in the documentation print the shown output, and all named options exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from support.commands import Run
from support.documents import PAGES, ROOT, blocks, run_apart, walk, without_figures
from support.forked import run_forked

from placement_checks.cli import cli

# Pages with commands of stable output, without times.
WALKED = [
    page
    for page in PAGES
    if page.name != "timing.md" and any(block.language == "console" for block in blocks(page))
]
# A command in a block or in a line of text.
_COMMAND = re.compile(r"(?<!_)placement-checks ([a-z-](?:[^`\n#|>]|\\\n)*)")


def test_documents_have_commands() -> None:
    names = {str(page.relative_to(ROOT)) for page in WALKED}

    assert names >= {
        "README.md",
        "docs/tutorial.md",
        "docs/numbers.md",
        "examples/from_one_gpu_to_two/README.md",
    }


@pytest.mark.parametrize("page", WALKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_print_the_documented_output(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: Path
) -> None:
    """After a change of the reports, python -m tests.support.documents PAGE writes them."""

    def printed(words: list[str], folder: Path) -> str:
        if folder != ROOT:  # where modules of the same name change from block to block
            return run_apart(words, folder, run_forked)
        monkeypatch.chdir(folder)
        ran = run(*words[1:])
        return ran.out or ran.err

    for block, now in walk(page, tmp_path, printed):
        assert without_figures(block.printed) == without_figures(now), block.command


def test_the_edits_of_an_example_lead_to_its_program() -> None:
    """The diffs in its README remove lines of the first port and add lines of the repaired one."""
    example = ROOT / "examples" / "from_one_gpu_to_two"
    before, after = (
        {line for name in names for line in (example / name).read_text().splitlines()}
        for names in (("one_gpu.py", "naive.py"), ("two_gpus.py",))
    )
    lines = [
        line
        for block in blocks(example / "README.md")
        if block.language == "diff"
        for line in block.text.splitlines()
    ]

    assert {line[0] for line in lines} == {" ", "-", "+"}
    assert {line[1:] for line in lines if line[0] != "+"} <= before
    assert {line[1:] for line in lines if line[0] != "-"} <= after
    assert not before & {line[1:] for line in lines if line[0] == "+"}


@pytest.mark.parametrize(
    ("page", "machine", "same"),
    [
        ("at most 1.0 eps", "at most 12.3 eps", True),
        ("off by 1.0e+06 eps", "off by 950 eps", True),
        ("in 0.8 s, 1,024 kB", "in 12 s, 999 kB", True),
        ("4 variables, 1.0 eps", "5 variables, 1.0 eps", False),
        ("the figure is missing: eps", "the figure is missing: 1 eps", False),
        ("2 steps", "3 steps", False),
        ("2 GPUs in 1 s", "3 GPUs in 1 s", False),
    ],
)
def test_figures_may_differ(page: str, machine: str, same: bool) -> None:
    assert (without_figures(page) == without_figures(machine)) is same


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    for command in _COMMAND.findall(page.read_text(encoding="utf-8")):
        name, _, others = command.partition(" ")
        options = re.findall(r"(?<!\S)--?[a-z][\w-]*", others.partition(" -- ")[0])
        context = click.Context(cli)

        named = cli.get_command(context, name)

        if named is None:
            assert name.startswith("-"), command
            continue
        known = {name for parameter in named.params for name in parameter.opts}
        known |= {name for parameter in named.params for name in parameter.secondary_opts}
        assert set(options) <= known, command
