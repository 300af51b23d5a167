"""Git repositories that tests make, and their whole state."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_AUTHOR = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return its output."""
    ran = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env={**os.environ, **_AUTHOR},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def commit(folder: Path, files: Mapping[str, str]) -> str:
    """Write files, commit everything, and return the hash; makes the repository if needed."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
    write(folder, files)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a change")
    return git(folder, "rev-parse", "HEAD")


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, and make their directories."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def state(folder: Path) -> dict[str, str]:
    """The content of every file of a directory, with times of change; also of ``.git``."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        time = "" if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = f"{status.st_mode} {time} {content}"
    return found
