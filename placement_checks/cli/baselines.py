"""``verify --baseline FOLDER``: a program is compared with its page there, or the page written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from placement_checks.baseline import files
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.compare import compare
from placement_checks.cli.output import write_stderr
from placement_checks.core.baseline import Baseline
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.results import Report
from placement_checks.report.common.baseline import headline, render_json, render_text
from placement_checks.verification.baseline_rules import with_rules
from placement_checks.verification.configuration import Settings
from placement_checks.verification.targets import gather


@dataclass
class Baselines:
    """The baselines of one call.

    Attributes:
        folder: where they are; None where none is asked for.
        update: whether they are to be written.
    """

    folder: Path | None
    update: bool
    _programs: dict[Path, str] = field(default_factory=dict)

    @staticmethod
    def of(folder: str | None, *, update: bool) -> Baselines:
        """Those that the options ask for.

        Raises:
            UsageError: they make no sense, or this is continuous integration.
        """
        if update and folder is None:
            raise UsageError(
                "--update", "writes baselines, and no folder is named", "add --baseline FOLDER"
            )
        if update and files.is_ci():
            raise UsageError(
                "--update",
                "writes no baselines where CI is set, as nobody would review them",
                "run it where you commit from, or set CI= before it",
            )
        return Baselines(None if folder is None else Path(folder), update)

    def checked(self, report: Report, settings: Settings) -> Report:
        """The report, with what differs from the program's baseline; or the baseline is written.

        Raises:
            InputError: there is no baseline, it cannot be read, or is another program's too.
            UsageError: it cannot be written.
        """
        if self.folder is None:
            return report
        placement = report.evidence.placement
        file = self.folder / files.file_name(placement.program, str(placement.machine))
        other = self._programs.setdefault(file, placement.program)
        if other != placement.program:
            raise InputError(
                placement.program,
                f"has the baseline {file} in common with {other}",
                "verify them with two folders",
            )
        if self.update:
            done = files.write(file, baseline_from_placement(placement))
            write_stderr(f"placement-checks: {'wrote' if done else 'up to date:'} {file}")
            return report
        old = files.read(file)
        if old is None:
            raise InputError(
                str(file),
                "does not exist: this program has no baseline",
                "write it: the same command with --update",
            )
        difference = compare(old, placement, str(file))
        difference = with_rules(difference, report.evidence, [settings.policy])
        return replace(report, baseline=difference)


def write(reports: Iterable[Report], stream: TextIO, output_format: str) -> None:
    """Write how programs differ from their baselines; for a page that is a line on stderr.

    The other formats tell it themselves.
    """
    for line in _lines(reports, output_format):
        if output_format == "text":
            stream.write(f"{line}\n")
        elif output_format == "html":
            write_stderr(f"placement-checks: {line}")


def compare_target(
    baseline: Baseline, file: str, target: str, settings: Settings, output_format: str
) -> tuple[str, bool]:
    """Returns what ``diff`` prints for a baseline and a target, and whether they differ.

    Args:
        baseline: the baseline.
        file: the file of the baseline.
        target: the target to compare with it.
        settings: the settings of the target.
        output_format: ``text`` or ``json``.

    Raises:
        InputError: the target cannot be placed, or has another machine.
    """
    evidence = gather(target, settings)
    difference = compare(baseline, evidence.placement, file)
    difference = with_rules(difference, evidence, [settings.policy])
    render = render_json if output_format == "json" else render_text
    return render(difference), bool(difference)


def _lines(reports: Iterable[Report], output_format: str) -> Iterator[str]:
    for report in reports:
        if report.baseline is not None:
            render = render_text if output_format == "text" else headline
            yield f"{report.baseline.new}: {render(report.baseline)}"
