"""What tests found of their baselines: gathered in each process, written and told by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import relpath
from pathlib import Path
from typing import Any

from placement_checks.core.errors import PlacementError
from placement_checks.util.text import plural


@dataclass
class BaselineFiles:
    """The baselines of a run of pytest; under xdist those of one worker, then those of all.

    Attributes:
        texts: what is to be written, by file, each with the test that gave it.
        used: the files that tests asked for.
        wanted: the tests that have the fixture, each with its folder of baselines.
        done: the tests that have compared something.
        torn: the files of which tests gave different texts.
    """

    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    wanted: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    torn: dict[str, list[str]] = field(default_factory=dict)

    def give(self, file: str, text: str, test: str) -> None:
        """Take the text of a file from a test; another text than before is not written."""
        before, other = self.texts.setdefault(file, (text, test))
        if before != text:
            self.torn.setdefault(file, [other]).append(test)

    def packed(self) -> dict[str, Any]:
        """For the way from a worker of xdist to the controller."""
        return {
            "texts": {file: list(given) for file, given in self.texts.items()},
            "used": sorted(self.used),
            "wanted": self.wanted,
            "done": sorted(self.done),
            "torn": self.torn,
        }

    def take(self, packed: Mapping[str, Any]) -> None:
        """Add what a worker has `packed`."""
        for file, (text, test) in packed["texts"].items():
            self.give(file, text, test)
        for file, tests in packed["torn"].items():
            self.torn.setdefault(file, []).extend(tests)
        self.used.update(packed["used"])
        self.wanted.update(packed["wanted"])
        self.done.update(packed["done"])

    def write(self) -> tuple[list[str], list[PlacementError]]:
        """Write the files; what was done, in lines, and what could not be written."""
        from placement_checks.core.baseline.parsing import parse
        from placement_checks.core.errors import UsageError
        from placement_checks.verification.baselines import files

        lines: list[str] = []
        errors: list[PlacementError] = []
        same = 0
        for file, (text, _) in sorted(self.texts.items()):
            if file in self.torn:
                tests = " and ".join(dict.fromkeys(self.torn[file]))
                fix = 'name one of them: placement_baseline("name")'
                message = f"is not written, as {tests} give different ones"
                errors.append(UsageError(relpath(file), message, fix))
                continue
            try:
                if files.write(Path(file), parse(text, file)):
                    lines.append(f"wrote {relpath(file)}")
                else:
                    same += 1
            except PlacementError as error:
                errors.append(error)
        if same:
            lines.append(f"{plural(same, 'baseline')} up to date")
        return lines, errors

    def unused(self) -> list[Path]:
        """The baselines beside the tests that no test asked for; none after a part of a run."""
        if not self.is_whole:
            return []
        folders = {Path(folder) for folder in self.wanted.values()}
        return [file for file in _baselines(folders) if str(file) not in self.used]

    @property
    def is_whole(self) -> bool:
        """Whether every test that was found and has the fixture has compared something."""
        return self.wanted.keys() <= self.done


def _baselines(folders: Iterable[Path]) -> Iterator[Path]:
    from placement_checks.core.baseline.parsing import is_baseline
    from placement_checks.verification.baselines.files import SUFFIX

    for folder in sorted(folders):
        for file in sorted(folder.glob(f"*{SUFFIX}")):
            if is_baseline(file.read_text(encoding="utf-8", errors="replace")):
                yield file
