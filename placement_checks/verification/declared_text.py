"""Declarations as lines of ``pyproject.toml``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from placement_checks.core.results import Report
from placement_checks.util.printable import printable
from placement_checks.util.text import plural
from placement_checks.verification.configuration import Settings
from placement_checks.verification.declaring import Declaration

_TABLE = "tool.placement_checks"
_WIDTH = 99
_HEAD = (
    "For pyproject.toml: what is broken now, declared as meant. Keep the lines that are true of "
    "your program, each in the place of what is there for the same field, and mend the rest."
)


def declared_text(
    programs: Sequence[tuple[Report, Settings, Sequence[Declaration]]],
) -> str:
    """The lines for some programs: of one for all, of several an entry for each.

    Args:
        programs: the verdicts on each, the settings that it was judged by, and what can be
            declared of it.
    """
    lines = [*_comment(_HEAD)]
    told = [program for program in programs if program[2]]
    for report, settings, declared in told:
        if len(programs) == 1:
            lines += _tables(declared)
        else:
            lines += ["", *_entry(report, settings), *_dotted(declared)]
        lines += _not_policy(declared, report.evidence.placement.program)
    return "\n".join(map(printable, lines)) + "\n"


def _tables(declared: Sequence[Declaration]) -> Iterator[str]:
    """A table for each rule."""
    for each in declared:
        if each.fields:
            yield ""
            yield from _comment(_meaning(each))
            yield f"[{_TABLE}.policy.{each.rule}]"
            yield from _assignments("", each.fields)


def _entry(report: Report, settings: Settings) -> Iterator[str]:
    """The head of a program's entry."""
    yield f"[[{_TABLE}.programs]]"
    own = {"target": report.evidence.placement.program}
    fields = {"gpus": settings.gpus, "machine": settings.machine, "args": list(settings.args)}
    yield from _assignments("", {**own, **{key: value for key, value in fields.items() if value}})


def _dotted(declared: Sequence[Declaration]) -> Iterator[str]:
    """The fields of a program's entry."""
    for each in declared:
        if each.fields:
            yield from _comment(_meaning(each))
            yield from _assignments(f"policy.{each.rule}.", each.fields)


def _meaning(each: Declaration) -> str:
    return f"{each.rule}, {plural(each.findings, 'finding')}: {each.meaning}"


def _not_policy(declared: Sequence[Declaration], program: str) -> Iterator[str]:
    """What is left to mend."""
    left = [each for each in declared if not each.fields]
    if left:
        yield ""
    for each in left:
        findings = plural(each.findings, "finding")
        yield from _comment(f"{each.meaning}: {each.rule}, {findings} in {program}")


def _comment(text: str) -> Iterator[str]:
    for line in wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False):
        yield f"# {line}"


def _assignments(path: str, fields: Mapping[str, Any]) -> Iterator[str]:
    for field, value in fields.items():
        yield from _assignment(f"{path}{field}", value)


def _assignment(key: str, value: Any) -> Iterator[str]:
    line = f"{key} = {_toml(value)}"
    if len(line) <= _WIDTH or not isinstance(value, list):
        yield line
        return
    yield f"{key} = ["
    yield from (f"  {_toml(item)}," for item in value)
    yield "]"


def _toml(value: Any) -> str:
    """A value as TOML writes it, which is as JSON does for texts, numbers and lists of them."""
    return json.dumps(value, ensure_ascii=False)
