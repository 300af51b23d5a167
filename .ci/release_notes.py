"""Prints what CHANGELOG.md says of a release: ``python .ci/release_notes.py v0.2.0``.

Fails where the tag is not the version of pyproject.toml, or the entry of it is missing or undated.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """The entry of a release.

    Raises:
        SystemExit: there is none, or the tag is not that of the version.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise SystemExit(f"{tag}: pyproject.toml has version {version}; tag it v{version}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    entry = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if entry is None or not entry[1].strip():
        raise SystemExit(
            f"CHANGELOG.md: has nothing under '## [{version}] - YYYY-MM-DD'; move what is under "
            "Unreleased there"
        )
    return entry[1].strip()


if __name__ == "__main__":
    print(notes(*sys.argv[1:]))
