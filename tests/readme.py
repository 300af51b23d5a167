"""The reports that the README shows: ``python -m tests.readme`` writes them anew."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
# A command and what it prints; at the first "…" in a line of its own the rest is left out.
EXAMPLE = re.compile(
    r"^```console\n\$ placement-checks (?P<command>verify (?:.*\\\n)*.*)\n"
    r"(?P<report>(?:(?!```).*\n)*?)(?P<cut>…\n)?```$",
    re.MULTILINE,
)


def _as_printed(example: re.Match[str]) -> str:
    """The example with what its command prints now; a part of it ends behind the first fix."""
    ran = subprocess.run(
        [sys.executable, "-m", "placement_checks", *shlex.split(example["command"])],
        capture_output=True,
        text=True,
        cwd=README.parent,
        check=False,
    )
    report = ran.stdout
    if example["cut"]:
        end = report.index("\n\n", report.index("    fix: "))
        report = f"{report[:end]}\n…\n"
    return f"```console\n$ placement-checks {example['command']}\n{report}```"


def main() -> None:
    """Write the file."""
    text = README.read_text(encoding="utf-8")
    README.write_text(EXAMPLE.sub(_as_printed, text), encoding="utf-8")


if __name__ == "__main__":
    main()
