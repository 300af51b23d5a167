"""The rules and findings of a program, as the page tells them and lights their ops."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from placement_checks.core.devices import Device
from placement_checks.core.results import Report, by_impact
from placement_checks.report.groups import Group
from placement_checks.report.picture.places import Places
from placement_checks.report.sections import Section, Sections
from placement_checks.report.text import error_bars
from placement_checks.report.text.source_text import source_text

_NOT_FOUND = -1
_OTHERS = re.compile(r",? which ")  # what follows tells of other devices than those at fault


def rules_told(report: Report) -> list[dict[str, Any]]:
    """Every rule that was selected, in the order of their impact."""
    return [
        {
            "rule": verdict.rule,
            "state": verdict.state,
            "note": verdict.reason or verdict.note or "",
            "findings": len(verdict.findings),
        }
        for verdict in by_impact(report.verdicts)
    ]


def findings_told(
    report: Report, places: Places, number: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The findings in groups that say the same, root causes first.

    Args:
        report: the verdicts.
        places: the devices by their numbers.
        number: the ops by their names.
    """
    sections = Sections(report.verdicts)
    in_order = chain(sections.causes, sections.consequences)
    return [told for section in in_order for told in _section(section, places, number)]


def _section(section: Section, places: Places, number: Mapping[str, int]) -> list[dict[str, Any]]:
    told = [_group(section.rule, group, places, number) for group in section.groups]
    if told and section.figures:
        told[-1]["figure"] = [line.plain for line in error_bars.picture(section.figures)]
    return told


def _group(rule: str, group: Group, places: Places, number: Mapping[str, int]) -> dict[str, Any]:
    first, where = group.first, group.where
    objects = [number[each.object] for each in group.findings if each.object in number]
    shown = [
        op
        for each in group.findings
        for op in (*(number.get(name, _NOT_FOUND) for name in each.ops), *_on(each.path, number))
        if op != _NOT_FOUND
    ]
    return {
        "rule": rule,
        "message": first.message,
        "where": where or "",
        "source": (source_text(where) if where else None) or "",
        "others": [name for name, _ in group.others],
        "path": list(first.path),
        "consequence": first.consequence,
        "fix": first.fix,
        "follows": first.follows or "",
        "figure": [],
        "objects": sorted(set(objects)),
        "ops": sorted({*objects, *shown}),
        "devices": _devices(group, places),
    }


def _on(path: Sequence[str], number: Mapping[str, int]) -> list[int]:
    """The op of each step of a path, which names it first or last."""
    found = []
    for step in path:
        first, last = re.split(r" \(|: ", step)[0], step.rpartition(": ")[2]
        found.append(number.get(first, number.get(last, _NOT_FOUND)))
    return found


def _devices(group: Group, places: Places) -> list[int]:
    """The devices that the findings are about: those that they are, or else name."""
    objects = {finding.object for finding in group.findings}
    about = _OTHERS.split(group.first.message, maxsplit=1)[0]
    return [
        number
        for number, device in enumerate(places.devices)
        if device and (device.short in objects or _names(about, device))
    ]


def _names(text: str, device: Device) -> bool:
    return re.search(re.escape(device.short) + r"(?![\w:])", text) is not None
