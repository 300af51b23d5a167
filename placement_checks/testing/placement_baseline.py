"""What the fixture ``placement_baseline`` gives: a placement is equal to it, or is not."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from placement_checks.testing.baseline_files import BaselineFiles

if TYPE_CHECKING:
    from placement_checks.core.baseline.difference import Difference
    from placement_checks.core.evidence import Evidence

_MOST = 10  # lines of each kind


@dataclass(eq=False)
class PlacementBaseline:
    """The baseline of a test; which file it is, is known when it is compared.

    Attributes:
        folder: of its file.
        test: the test that asks for it.
        files: which take what is found.
        is_update: whether the file is to be written, instead of compared with.
        all_lines: whether all that differs is told.
        name: of the file; by default the program's.
        exact: whether ops more or fewer count as well.
        why: why the last comparison was false.
    """

    folder: Path
    test: str
    files: BaselineFiles
    is_update: bool = False
    all_lines: bool = False
    name: str = ""
    exact: bool = False
    why: list[str] = field(default_factory=list, repr=False)

    def __call__(self, name: str = "", *, exact: bool = False) -> PlacementBaseline:
        """The baseline of a name of its own, or one that is to be kept exactly."""
        return replace(self, name=name or self.name, exact=exact or self.exact, why=[])

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"PlacementBaseline({self.name or 'of the program'} in {os.path.relpath(self.folder)})"
        )

    def __eq__(self, other: object) -> bool:
        """Whether everything of a placement is where its baseline says.

        Raises:
            UsageError: it is compared with something else.
            InputError: the baseline cannot be read, or is of another machine.
        """
        __tracebackhide__ = True
        from placement_checks.core.evidence import Evidence
        from placement_checks.testing.checking import cannot_be_placed
        from placement_checks.testing.naming import program_name
        from placement_checks.verification.baselines.files import file_name, read

        evidence = Evidence.of(other)  # type: ignore[arg-type]
        program = program_name(evidence)
        if cannot_be_placed(evidence.placement):
            pytest.skip(f"{program} has no places to compare: {evidence.placement.assigned}")
        file = self.folder / file_name(self.name or program, str(evidence.machine))
        self.files.used.add(str(file))
        self.files.done.add(self.test)
        if self.is_update:
            self._give(file, evidence)
            return True
        shown = os.path.relpath(file)
        old = read(file)
        if old is None:
            self.why = [
                f"{shown} does not exist: {program} has no baseline",
                f"write it: {self._command}",
            ]
            return False
        from placement_checks.verification.baselines.broken_rules import with_rules
        from placement_checks.verification.baselines.comparing import compare

        difference = compare(old, evidence.placement, shown, exact=self.exact)
        if difference:
            difference = with_rules(difference, evidence, [evidence.policy])
            self.why = self._lines(difference)
        return not difference

    def _give(self, file: Path, evidence: Evidence) -> None:
        from placement_checks.core.baseline.text import render
        from placement_checks.verification.baselines.comparing import written

        self.files.give(str(file), render(written(evidence.placement)), self.test)

    def _lines(self, difference: Difference) -> list[str]:
        from placement_checks.report.baseline import render_text

        text = render_text(difference, 1_000_000 if self.all_lines else _MOST)
        return [*text.split("\n"), f"if this is meant: {self._command}"]

    @property
    def _command(self) -> str:
        return f"pytest --placement-update {shlex.quote(self.test)}"


def explained(op: str, left: object, right: object) -> list[str] | None:
    """Why ``left == right`` is false, where one of them is a baseline."""
    for side in (right, left):
        if op == "==" and isinstance(side, PlacementBaseline) and side.why:
            return side.why
    return None
