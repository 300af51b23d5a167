"""Renders the checks of a machine as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from placement_checks.core.checkup import Check, Checkup, ComparedProgram, GpuComparison
from placement_checks.core.devices import Device
from placement_checks.report.common.json import versioned_json
from placement_checks.util.text import join_and, plural, printable

_MOST_LISTED = 5  # ops of a program


def render_text(checkup: Checkup) -> str:
    """Returns a line for each check, the conclusion, and the comparison with GPUs, if any."""
    lines = [*check_lines(checkup), "", conclusion(checkup)]
    if checkup.gpus is not None:
        lines += ["", *gpu_lines(checkup.gpus)]
    return "\n".join(map(printable, lines)) + "\n"


def check_lines(checkup: Checkup) -> Iterator[str]:
    """Yields a line for each check: its state, its name, the facts found and the fix."""
    widest = max(len(check.name) for check in checkup.checks)
    for check in checkup.checks:
        fix = f"; {check.fix}" if check.fix else ""
        yield f"{check.state:<7}  {check.name:<{widest}}  {check.found}{fix}"


def conclusion(checkup: Checkup) -> str:
    """Returns whether programs can be checked, in a sentence."""
    missing = _names(checkup, "missing")
    limited = _names(checkup, "limited")
    if missing:
        return f"Programs cannot be checked here, or only in part: see {missing}."
    if limited:
        return f"Programs can be checked here, with limits: see {limited}."
    return "Programs can be checked here."


def _names(checkup: Checkup, state: str) -> str:
    return join_and(check.name for check in checkup.checks if check.state == state)


def gpu_lines(gpus: GpuComparison) -> Iterator[str]:
    """Yields a line for each program with its differences, and a line for each assumption."""
    yield f"Predictions for 2 GPUs, compared with {gpus.devices}:"
    yield ""
    widest = max(len(program.name) for program in gpus.programs)
    for program in gpus.programs:
        yield f"{program.state:<9}  {program.name:<{widest}}  {_result(program)}".rstrip()
        for each in program.differences[:_MOST_LISTED]:
            where = "executed" if each.executed else "placed"
            yield (
                f"{'':9}  {each.op} ({each.type}): predicted {_short(each.predicted)}, {where} on "
                f"{_short(each.found)}"
            )
        if len(program.differences) > _MOST_LISTED:
            yield f"{'':9}  and {len(program.differences) - _MOST_LISTED:,} more, in --format json"
    yield ""
    yield "Assumptions of predictions:"
    yield ""
    for answer in gpus.answers:
        yield f"{answer.state:<12}  {answer.assumption}"
        yield f"{'':12}  {answer.reason}"
    yield ""
    yield _gpu_conclusion(gpus)


def _result(program: ComparedProgram) -> str:
    if program.state in ("failed", "skipped"):
        return program.reason
    counts = f"{program.ops:,} of {plural(program.predicted, 'op')}"
    if program.differences:
        others = len({each.op for each in program.differences})
        counts += f", {others:,} on other devices than predicted"
    return "; ".join(filter(None, (counts, program.reason)))


def _gpu_conclusion(gpus: GpuComparison) -> str:
    ran = [program for program in gpus.programs if program.state != "skipped"]
    wrong = sum(program.state != "same" for program in ran)
    if gpus.is_as_predicted:
        return f"All {plural(len(ran), 'program')} ran as predicted."
    send = "Please report this machine with the output of --format json."
    return f"{wrong} of {plural(len(ran), 'program')} did not run as predicted. {send}"


def _short(device: str) -> str:
    return Device.parse(device).short


def render_json(checkup: Checkup) -> str:
    """Returns the JSON document."""
    document = {
        "can_check": checkup.can_check,
        "checks": [_check(check) for check in checkup.checks],
        "gpus": None if checkup.gpus is None else asdict(checkup.gpus),
    }
    return versioned_json(document, schema=1) + "\n"


def _check(check: Check) -> dict[str, str]:
    return {
        "check": check.name,
        "state": check.state,
        "found": check.found,
        "fix": check.fix,
    }
