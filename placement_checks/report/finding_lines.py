"""Findings as lines of text, for the terminal and for assertion messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placement_checks.core.results import Finding

_LONGEST_PATH = 12
_INSIDE = re.compile(r" \(built at .*\)$")


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Every finding once: with its source line, its path, and the fix after the last that has it.

    Findings that follow each other and differ only in their object share one sentence.
    """
    for fix, fixed_alike in groupby(findings, key=lambda finding: finding.fix):
        for _, group in groupby(fixed_alike, key=_likeness):
            first, *others = group
            yield f"  {first.where}: {first.message}" if first.where else f"  {first.message}"
            yield from _path(first.path)
            if others:
                yield f"      and likewise {', '.join(finding.object for finding in others)}"
        yield f"    fix: {fix}"


def _likeness(finding: Finding) -> tuple[object, ...]:
    name = rf"(?<![\w/]){re.escape(finding.object)}(?![\w/])"
    sentence = re.sub(name, "", finding.message)
    return (finding.where, finding.expected, _INSIDE.sub("", sentence))


def _path(path: Sequence[str]) -> Iterator[str]:
    yield from (f"      {step}" for step in path[:_LONGEST_PATH])
    if len(path) > _LONGEST_PATH:
        yield f"      and {len(path) - _LONGEST_PATH} more, see --format json"
