"""Prints the entry of a release in CHANGELOG.md: ``python .ci/release_notes.py v0.2.0``.

Fails if the tag does not name the version in pyproject.toml, or if its entry is missing or has no
date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """Returns the entry of a release.

    Raises:
        SystemExit: there is no entry, or the tag does not name the version in pyproject.toml.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise SystemExit(f"{tag}: pyproject.toml has version {version}; tag it v{version}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    entry = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if entry is None or not entry[1].strip():
        raise SystemExit(
            f"CHANGELOG.md: has no entry '## [{version}] - YYYY-MM-DD'; move the entries under "
            "Unreleased there"
        )
    return entry[1].strip()


if __name__ == "__main__":
    print(notes(*sys.argv[1:]))
