"""``--baseline FOLDER`` of `verify`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from placement_checks.baseline import files
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.compare import compare
from placement_checks.cli.output import write_stderr
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.results import Report
from placement_checks.report.common.baseline import headline, render_text
from placement_checks.verification.baseline_rules import with_rules
from placement_checks.verification.configuration import Settings


@dataclass
class Baselines:
    """The baselines of one call of `verify`.

    Attributes:
        folder: the directory of the baseline files; None without --baseline.
        update: whether to write the files.
    """

    folder: Path | None
    update: bool
    _programs: dict[Path, str] = field(default_factory=dict)  # by baseline file

    @staticmethod
    def from_options(folder: str | None, *, update: bool) -> Baselines:
        """The baselines that --baseline and --update name.

        Raises:
            UsageError: --update without --baseline, or in continuous integration.
        """
        if update and folder is None:
            raise UsageError(
                "--update",
                "writes baselines, but no directory is named",
                "add --baseline FOLDER",
                is_predicate=True,
            )
        if update and files.is_ci():
            raise UsageError(
                "--update",
                "writes no baselines if CI is set, because nobody would review them",
                "run it where you commit from, or set CI= before the command",
                is_predicate=True,
            )
        return Baselines(None if folder is None else Path(folder), update)

    def compare(self, report: Report, settings: Settings) -> Report:
        """Add the differences from the program's baseline to a report, or write the baseline.

        Raises:
            InputError: the baseline does not exist, is invalid, or belongs to two programs.
            UsageError: the baseline cannot be written.
        """
        if self.folder is None:
            return report
        placement = report.evidence.placement
        file = self.folder / files.file_name(placement.program, str(placement.machine))
        other = self._programs.setdefault(file, placement.program)
        if other != placement.program:
            raise InputError(
                placement.program,
                f"has the same baseline file as {other}: {file}",
                "verify them with two directories",
                is_predicate=True,
            )
        if self.update:
            is_new = files.write(file, baseline_from_placement(placement))
            write_stderr(f"placement-checks: {'wrote' if is_new else 'up to date:'} {file}")
            return report
        old = files.read(file)
        if old is None:
            raise InputError(
                str(file),
                "does not exist: this program has no baseline",
                "write it: the same command with --update",
                is_predicate=True,
            )
        difference = compare(old, placement, str(file))
        difference = with_rules(difference, report.evidence, [settings.policy])
        return replace(report, baseline=difference)


def write_differences(reports: Iterable[Report], stream: TextIO, output_format: str) -> None:
    """Write how programs differ from their baselines.

    The text goes to ``stream``, a headline for HTML to stderr; other formats include differences
    in the report.
    """
    for report in reports:
        if report.baseline is None:
            continue
        program = report.baseline.new
        if output_format == "text":
            stream.write(f"{program}: {render_text(report.baseline)}\n")
        elif output_format == "html":
            write_stderr(f"placement-checks: {program}: {headline(report.baseline)}")
