"""Collects the rules and findings of a program for the page, and writes its headline.

The headline is the sentence above the picture: the first root cause of the program.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.results import PathStep, Report
from placement_checks.report.common.findings import (
    Group,
    Sections,
    objective_lines,
)
from placement_checks.report.common.source import source_text
from placement_checks.report.page.devices import DeviceTable
from placement_checks.report.text.findings import draw_error_bars
from placement_checks.util.text import join_and, plural


def rules_data(report: Report) -> list[dict[str, Any]]:
    """Returns the selected rules in the order of the report."""
    return [
        {
            "rule": verdict.rule,
            "state": verdict.state,
            "note": verdict.reason or verdict.note or "",
            "findings": sum(not finding.is_doubt for finding in verdict.findings),
            "lines": list(objective_lines(verdict)),
        }
        for verdict in report.verdicts
    ]


def findings_data(
    report: Report, places: DeviceTable, number: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Returns the groups of findings: root causes, consequences, doubts."""
    sections, placement = Sections(report.verdicts), report.evidence.placement
    found = []
    for section in (*sections.causes, *sections.consequences, *sections.doubts):
        groups = [
            {
                "rule": section.rule,
                **_group_data(group, number),
                "devices": _devices(group, placement, places),
            }
            for group in section.groups
        ]
        if groups and section.figures:
            bars = draw_error_bars(section.figures)
            groups[-1]["figure"] = [line.plain for line in bars]
        found += groups
    return found


def _group_data(group: Group, number: Mapping[str, int]) -> dict[str, Any]:
    first, where = group.first, group.where
    objects = {number[each.object] for each in group.findings if each.object in number}
    shown = {
        name
        for each in group.findings
        for name in (*each.ops, *(step.op for step in each.path if isinstance(step, PathStep)))
    }
    return {
        "message": first.message,
        "where": where or "",
        "source": (source_text(where) if where else None) or "",
        "others": [name for name, _ in group.others],
        "path": list(map(str, first.path)),
        "consequence": first.consequence,
        "fix": first.fix,
        "follows": first.follows or "",
        "doubt": first.is_doubt,
        "figure": [],
        "objects": sorted(objects),
        "ops": sorted(objects | {number[name] for name in shown if name in number}),
    }


def _devices(group: Group, placement: Placement, places: DeviceTable) -> list[int]:
    """The devices that are objects of the findings, or at fault in the first finding."""
    first = group.first
    at_fault = {device.short for device in first.devices}
    misplaced = placement.ops.get(first.placed or first.object)
    if not at_fault and first.evidence == "assigned" and misplaced and misplaced.assigned:
        at_fault = {misplaced.assigned.short}
    names = at_fault | {finding.object for finding in group.findings}
    return [
        number for number, device in enumerate(places.devices) if device and device.short in names
    ]


_ALIKE = "towers-alike"  # the rule that towers compute the same
_LONGEST = 160
_MOST_NAMED = 4  # devices


class Headline(NamedTuple):
    """The state of a program, a sentence that describes it, and further sentences."""

    state: str
    sentence: str
    facts: Sequence[str]


def headline(report: Report, places: DeviceTable) -> Headline:
    """Returns the headline of a program that was judged, or only placed."""
    placement = report.evidence.placement
    broken = [verdict.rule for verdict in report.verdicts if verdict.state == "broken"]
    kept, unchecked = report.count("kept"), report.count("not-checked")
    if broken:
        checked = f"{len(broken)} of {plural(len(broken) + kept, 'rule')} that could be checked"
        verb = "is" if len(broken) == 1 else "are"
        facts = [f"{checked} {verb} broken: {join_and(broken)}."]
        state, sentence = "broken", _label_devices(_first_cause(report), places)
    elif kept:
        state, facts = "kept", []
        sentence = f"all {kept} rules that could be checked are kept"
        if kept == 1:
            sentence = "the one rule that could be checked is kept"
        alike = any(each.rule == _ALIKE and each.state == "kept" for each in report.verdicts)
        sharing = _variable_sharing(placement, places, alike)
        sentence = f"{sharing}: {sentence}" if sharing else _capitalize(sentence)
    elif doubts := Sections(report.verdicts).doubts:
        state, sentence, facts = "doubtful", doubts[0].groups[0].first.message, []
    elif report.verdicts:
        state, facts = "not-checked", []
        sentence = f"{_op_devices(placement, places)}: nothing could be checked"
    else:
        state, sentence, facts = "placed", _op_devices(placement, places), []
    if doubtful := report.count("doubtful"):
        facts.append(f"{doubtful} doubtful.")
    if unchecked and state != "not-checked":
        facts.append(f"{unchecked} not checked.")
    facts.append(f"{plural(len(placement.ops), 'op')}.")
    facts += filter(None, [_trained_variables(placement, places)])
    return Headline(state, f"{sentence.rstrip('.')}.", facts)


def _capitalize(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _first_cause(report: Report) -> str:
    cause = next(section for section in Sections(report.verdicts).causes if section.findings)
    (verdict,) = (verdict for verdict in report.verdicts if verdict.rule == cause.rule)
    if verdict.headline:
        return verdict.headline
    first = cause.groups[0].first
    text = first.message.partition("; ")[0]
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    if not text.startswith(first.object):
        text = _capitalize(text)
    more = len(cause.findings) - 1
    return f"{text} (and {more} more)" if more else text


def _label_devices(sentence: str, places: DeviceTable) -> str:
    """The sentence with the devices' names replaced by their labels in the picture."""
    labels = {
        device.short: places.label(device)
        for device in places.devices
        if device.type is not None and device.index is not None
    }
    names = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    if not names:
        return sentence
    return re.sub(rf"(?:{names})(?![\w:])", lambda match: labels[match[0]], sentence)


def _variable_sharing(placement: Placement, places: DeviceTable, alike: bool) -> str:
    """How the towers share their variables; "" if there is no short description.

    ``alike`` is whether the towers were checked to compute the same.
    """
    towers = len(places.towers)
    if towers < 2 or not placement.assigned:
        return ""
    layout = variable_layout(placement)
    read = [name for name in layout.readers if layout.kind(name) != "own"]
    kinds = {layout.kind(name) for name in read}
    if kinds == {"mirrored"}:
        compute = " compute alike" if alike else ""
        return f"{towers} towers{compute}, each with a copy of the variables"
    on = {placement.ops[name].assigned for name in read} - {None}
    if kinds == {"central"} and 0 < len(on) <= _MOST_NAMED:
        labels = join_and(places.label(device) for device in places.devices if device in on)
        compute = " compute alike and" if alike else ""
        return f"{towers} towers{compute} share the variables on {labels}"
    return ""


def _op_devices(placement: Placement, places: DeviceTable) -> str:
    used = {op.assigned for op in placement.ops.values()} - {None}
    if not used:
        return plural(len(placement.ops), "op")
    where = [places.label(device) for device in places.devices if device in used]
    named = join_and(where) if len(where) <= _MOST_NAMED else plural(len(where), "device")
    return f"{plural(len(placement.ops), 'op')} on {named}"


def _trained_variables(placement: Placement, places: DeviceTable) -> str:
    """The devices of the trained variables; "" if they are too many."""
    mirrored = variable_layout(placement).mirrored if placement.requested else ()
    if mirrored:
        gpus = max(len(group.copies) for group in mirrored)
        return f"{plural(len(mirrored), 'trained variable')}, with a copy on each of {gpus} GPUs."
    trained = placement.collected.get(TRAINABLE, frozenset())
    on = Counter(placement.ops[name].assigned for name in trained if name in placement.ops)
    on.pop(None, None)
    if not 0 < len(on) <= _MOST_NAMED:
        return ""
    where = join_and(
        f"{places.label(device)}{f' ({on[device]})' if len(on) > 1 else ''}"
        for device in places.devices
        if device in on
    )
    return f"{plural(on.total(), 'trained variable')} on {where}."
