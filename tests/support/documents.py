"""The pages of the documentation: snippets, commands and their output.

A ``console`` block has a command after ``$`` and its output. A Python block with the first line
``# FILE.py`` creates this file in the project of the page. The page of an example has the files of
the example. The following commands run in this project. ``python -m tests.support.documents``
writes the current output into the pages.

No page depends on the machine: `without_figures` is the only way to compare texts with figures.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
EXAMPLES = ROOT / "examples"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")), *sorted(EXAMPLES.glob("*/README.md")))
# Files that exist in the project of the README from the beginning.
_GIVEN = {
    "train.py": "fixtures/defects/graph/last_tower_only.py",
    "model.py": "fixtures/defects/graph/model.py",
}
_FENCE = re.compile(
    r"^(?P<head>```(?P<language>\w*)\n)(?P<text>(?:(?!```).*\n)*?)```$", re.MULTILINE
)
_COMMAND = re.compile(r"\$ (?P<command>(?:.*\\\n)*.*)\n")
_FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
CUT = "…\n"  # a line: the rest is left out
# A number that rounding, speed or memory decides, so that each machine prints another one.
_FIGURE = re.compile(r"(?<![\d.,])\d[\d,.]*(?:e[+-]?\d+)?(?= (?:eps|ms|s|cores?|kB|MB|GB)\b)")

# Runs a command, given as words, in a directory, and returns its output.
Runner = Callable[[list[str], Path], str]


# Runs ``python ARGUMENTS`` in a directory, with these environment variables.
RunPython = Callable[[list[str], Path, Mapping[str, str]], subprocess.CompletedProcess[str]]


def run_python(
    arguments: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` in a new interpreter."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


class Block(NamedTuple):
    """A code block of a page."""

    page: Path
    language: str
    text: str
    start: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block creates, if any."""
        named = _FILE.match(self.text)
        return named[1] if named else None

    @property
    def command(self) -> str:
        """The command of a ``console`` block."""
        found = _COMMAND.match(self.text)
        assert found, self.text
        return found["command"]

    @property
    def printed(self) -> str:
        """The output of the command, as shown on the page."""
        return self.text[len(f"$ {self.command}\n") :]


def without_figures(text: str) -> str:
    """Replace the figures that differ between machines: ``0.8 eps`` and ``1.0 eps`` are equal."""
    return _FIGURE.sub("#", text)


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in order."""
    for found in _FENCE.finditer(page.read_text(encoding="utf-8")):
        yield Block(page, found["language"], found["text"], found.start("text"))


def walk(page: Path, project: Path, run: Runner) -> Iterator[tuple[Block, str]]:
    """Follow a page like a reader: yield its console blocks, each with its current output."""
    if page == README:
        for name, source in _GIVEN.items():
            shutil.copy(ROOT / source, project / name)
    if EXAMPLES in page.parents:
        shutil.copytree(page.parent, project, dirs_exist_ok=True)
    for block in blocks(page):
        if block.file:
            (project / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            words = shlex.split(block.command.replace("\\\n", ""))
            own = any(word.startswith("fixtures/") for word in words)
            printed = run(words, ROOT if own else project)
            yield block, _shown(words, printed, cut=f"\n{block.printed}".endswith(f"\n{CUT}"))


def _shown(words: list[str], printed: str, cut: bool) -> str:
    """The part of the output that pages show: failures of pytest, and the first finding of cut
    reports."""
    if words[0] == "pytest":
        failed = [line for line in printed.splitlines() if line.startswith("E ")]
        last = re.sub(r" in [\d.]+s( \([\d:]+\))?", "", printed.strip().splitlines()[-1])
        return "".join(f"{line}\n" for line in (*failed, last))
    if words[1] == "time":
        printed = printed[: printed.index("\n\n", printed.index("overlap "))]
        return f"{printed}\n{CUT}"
    if not cut:
        return printed
    end = printed.find("\n\n", printed.index("    fix: "))
    return f"{printed[:end]}\n{CUT}"


def run_apart(words: list[str], folder: Path, run: RunPython = run_python) -> str:
    """Run a command in a process of its own."""
    module = {"placement-checks": "placement_checks", "pytest": "pytest"}[Path(words[0]).name]
    # As on a reader's machine: in CI, no baselines are written.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": ""}
    ran = run(["-m", module, *words[1:]], folder, environment)
    return ran.stdout or ran.stderr


def main() -> None:
    """Write the current output of commands into the given pages, or into all pages."""
    for page in map(Path, sys.argv[1:] or PAGES):
        with tempfile.TemporaryDirectory() as project:
            changed = list(walk(page.resolve(), Path(project), run_apart))
        text = page.read_text(encoding="utf-8")
        for block, printed in reversed(changed):
            if without_figures(printed) == without_figures(block.printed):
                continue  # the figures of the page are as true as those of this machine
            start = block.start + len(block.text) - len(block.printed)
            text = text[:start] + printed + text[block.start + len(block.text) :]
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
