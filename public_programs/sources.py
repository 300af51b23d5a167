"""The sources of public programs, and a copy of the files that a program needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from public_programs.programs import Program

SOURCES = "PLACEMENT_CHECKS_SOURCES"
# Possible names of a clone or mirror of OWNER/NAME in the directory of sources.
_FORMS = ("{owner}/{name}", "{owner}+{name}", "{name}", "{owner}/{name}.git", "{name}.git")
_WITHIN = (".git", ".", "repo/.git", "repo")


def sources() -> Path | None:
    """The directory of sources, from the environment."""
    folder = os.environ.get(SOURCES)
    return Path(folder) if folder else None


def repository(program: Program, folder: Path) -> Path | None:
    """The git directory with the program's commit, in the directory of sources."""
    owner, name = program.repository.split("/")
    for form in _FORMS:
        for within in _WITHIN:
            path = folder / form.format(owner=owner, name=name) / within
            if (path / "HEAD").is_file() and _git(path, "cat-file", "-e", program.commit) == 0:
                return path
    return None


def _git(path: Path, *words: str) -> int:
    return subprocess.run(["git", f"--git-dir={path}", *words], capture_output=True).returncode


def extract(program: Program, git: Path, into: Path) -> Path:
    """Write the program's files as committed, and the data that it needs.

    Returns the start directory of the program.
    """
    root = root_of(program, into)
    root.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(
        ["git", f"--git-dir={git}", "archive", program.commit, "--", *program.paths],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    subprocess.run(["tar", "--extract", "--directory", root], input=archive, check=True)
    folder = root / program.folder
    program.data(folder)
    return folder


def root_of(program: Program, into: Path) -> Path:
    """The directory of the files of a repository in the directory of a program."""
    return into / program.repository.partition("/")[2]
