"""Reports for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from placement_checks.core.placement import Placement
from placement_checks.core.results import Report, Verdict
from placement_checks.report.console import show
from placement_checks.report.error_bars import picture
from placement_checks.report.finding_lines import finding_lines
from placement_checks.util.text import file_size, plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement

_STATES = {
    "kept": ("KEPT", "green"),
    "broken": ("BROKEN", "bold red"),
    "not-checked": ("NOT CHECKED", "yellow"),
}
_PLACERS = {
    "phantom": "TensorFlow's placer, devices that need not exist",
    "session": "TensorFlow's placer, the devices of this machine",
}


def write(reports: Sequence[Report], console: Console) -> None:
    """Print the verdicts of every program, its findings, and the count last."""
    for report in reports:
        for line in _program(report):
            show(console, line)
    show(console, _count(reports))


def _program(report: Report) -> Iterator[Text]:
    placement, measurement = report.evidence.placement, report.evidence.measurement
    yield Text.assemble((placement.program, "bold"), _conditions(placement))
    if not placement.complete:
        yield Text(placement.complete.reason, "yellow")
    if measurement:
        yield Text(_run_conditions(measurement))
    yield Text()
    width = 2 + max((len(verdict.rule) for verdict in report.verdicts), default=0)
    for verdict in report.verdicts:
        label, style = _STATES[verdict.state]
        detail = "; ".join(filter(None, (verdict.reason, verdict.note)))
        rule = f"{verdict.rule:<{width}}"
        line = Text.assemble("  ", (f"{label:<13}", style), rule, (detail, "dim"))
        line.rstrip()
        yield line
    yield Text()
    for verdict in report.verdicts:
        yield from _findings(verdict)
        if any("error" in figure for figure in verdict.figures):
            yield Text(f"{verdict.rule}, in eps of the largest value", "bold")
            yield from picture(verdict.figures)
            yield Text()
    if measurement and measurement.saved:
        size = file_size(measurement.saved_bytes)
        yield Text(f"The rows and first values are saved ({size}): --batch {measurement.saved}")
        yield Text()


def _conditions(placement: Placement) -> str:
    if placement.machine is None:
        return ""
    if placement.placer is None:
        return f" on {placement.machine}, not placed"
    if placement.placer == "log":
        return f" on {placement.machine} (a placement log)"
    strictness = "soft" if placement.soft else "strict"
    return f" on {placement.machine} ({_PLACERS[placement.placer]}, {strictness})"


def _run_conditions(measurement: Measurement) -> str:
    """Beside what the program was run, and where."""
    simulated = measurement.devices == "simulated"
    on = "CPU devices in place of GPUs" if simulated else "the GPUs of this machine"
    return f"run beside {measurement.reference}, on {on}"


def _findings(verdict: Verdict) -> Iterator[Text]:
    if not verdict.findings:
        return
    yield Text.assemble(
        (verdict.rule, "bold red"), f": {plural(len(verdict.findings), 'finding')}"
    )
    for line in finding_lines(verdict.findings):
        text = Text(line)
        text.highlight_regex(r"^  \S+:\d+(?=:)", "cyan")
        text.highlight_regex(r"^    fix:", "green")
        text.highlight_regex(r"^      .*", "dim")
        yield text
    yield Text()


def _count(reports: Sequence[Report]) -> Text:
    counts = {state: sum(report.count(state) for report in reports) for state in _STATES}
    states = ", ".join(f"{count} {state.replace('-', ' ')}" for state, count in counts.items())
    return Text(
        f"{plural(len(reports), 'program')}, rules: {states}.",
        "bold red" if counts["broken"] else "bold",
    )
