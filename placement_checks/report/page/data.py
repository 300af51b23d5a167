"""Collects the data that the page shows for one program, or for two placements of a program.

`page/assets/data.js` reads it. Ops and copies are columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.addresses import Part
from placement_checks.analysis.step.transfers import copies
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.roles import roles
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.baseline import Difference
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import COLLECTIVES, CONST
from placement_checks.core.placement import TRAINABLE, Placement, Tensor, producer_of
from placement_checks.core.results import Report
from placement_checks.core.revisions import ProgramChange, Since
from placement_checks.core.trace import OpSpan, Trace
from placement_checks.report.commands.since import headline as since_headline
from placement_checks.report.common.baseline import change_text
from placement_checks.report.common.baseline import headline as difference_headline
from placement_checks.report.page.devices import DeviceTable
from placement_checks.report.page.findings import findings_data, headline, rules_data
from placement_checks.report.page.layout import KINDS, PageLayout, copy_kind, page_layout
from placement_checks.report.text.writer import conditions, run_conditions
from placement_checks.util.text import plural, printable

_OTHER, _TRAINED, _SLOT = range(3)


def variables_data(placement: Placement, number: Mapping[str, int]) -> Iterator[list[Any]]:
    """Yields each variable: op, bytes, kind, dtype and shape, its readers, and its role.

    The readers are towers; the list is empty if all towers read the variable.
    """
    trained = set(placement.collected.get(TRAINABLE, ()))
    owners: Mapping[str, str] = {}
    readers: Mapping[str, int] = {}
    towers = 0
    if placement.requested:
        owners = find_slots(placement).owner_of
        layout = variable_layout(placement)
        readers = layout.readers
        trained.update(layout.copies)
        towers = len(analyze(placement).towers)
    for variable in placement.variables:
        name = variable.name
        mask = readers.get(name) or readers.get(owners.get(name, ""), 0)
        by = [] if mask.bit_count() == towers else [n for n in range(towers) if mask >> n & 1]
        kind = _TRAINED if name in trained else _SLOT if name in owners else _OTHER
        role = str(roles(placement)[name]) if placement.requested else ""
        size = Tensor(variable.dtype.removesuffix("_ref"), variable.shape).bytes
        shape = "?" if variable.shape is None else list(variable.shape)
        form = f"{variable.dtype} {shape}" if variable.dtype else ""
        yield [number[name], size, kind, form, by, role]


class CopyRow(NamedTuple):
    """A copied tensor.

    Attributes:
        op: the number of the op that produces the tensor.
        source, to: the devices.
        kind: the index in `KINDS`.
        bytes: the size; None if it depends on the number of rows, or is unknown.
        row_bytes: the size if each tower had one row; None if it does not depend on the rows.
    """

    op: int
    source: Device
    to: Device
    kind: int
    bytes: int | None
    row_bytes: int | None


def copies_data(
    placement: Placement, places: DeviceTable, parts: Sequence[Part]
) -> dict[str, Any]:
    """Returns the copies of one step as columns.

    If the size depends on the number of rows of the batch, ``bytes`` is None, and ``a_row`` is the
    size if each tower had one row. A collective reduction is a copy from each device to itself.
    """
    found: list[CopyRow] = []
    if placement.assigned and placement.requested:
        found = [*_copied_rows(placement, parts), *_reduced_rows(placement)]
    return {
        "op": [each.op for each in found],
        "from": [places.number(each.source) for each in found],
        "to": [places.number(each.to) for each in found],
        "kind": [each.kind for each in found],
        "bytes": [each.bytes for each in found],
        "a_row": [each.row_bytes or 0 for each in found],
    }


def _copied_rows(placement: Placement, parts: Sequence[Part]) -> Iterator[CopyRow]:
    analysis = analyze(placement)
    number, types = analysis.flow.number, analysis.flow.types
    found = copies(placement)
    a_row = {}
    if any(copy.bytes is None for copy in found):
        towers = len(analysis.towers) or 1
        a_row = {(copy.tensor, copy.to): copy.bytes for copy in copies(placement, towers)}
    for copy in found:
        op = number[producer_of(copy.tensor)]
        kind = copy_kind("other" if types[op] == CONST else parts[op])
        of_row = a_row.get((copy.tensor, copy.to)) if copy.bytes is None else None
        yield CopyRow(op, copy.source, copy.to, kind, copy.bytes, of_row)


def _reduced_rows(placement: Placement) -> Iterator[CopyRow]:
    """Yields the inputs of collective ops that have inputs from several devices."""
    flow, steps = analyze(placement).flow, analyze(placement).updates.in_step
    ops = placement.by_number
    for here in flow.having(COLLECTIVES.__contains__):
        device = ops[here].assigned
        others = {ops[source].assigned for source in flow.inputs[here]} - {device, None}
        if device is None or not others or not steps[here]:
            continue
        outputs = placement.details.outputs(flow.names[here])
        size = outputs[0].bytes if outputs else None
        yield CopyRow(here, device, device, KINDS.index("all-reduce"), size, None)


_MIN_SHARE = 1 / 1200  # of the step; shorter ops are drawn together with their neighbors


def step_data(trace: Trace | Missing, program: str, places: DeviceTable) -> dict[str, Any] | None:
    """Returns the fastest traced step; a span is its first op, number of ops, start and length."""
    if not trace:
        return None
    step = trace.shortest
    return {
        "caption": _step_caption(trace, program),
        "seconds": step.seconds,
        "lanes": [
            {
                "label": places.label(device),
                "gpu": device.is_gpu,
                "spans": [
                    [ops[0].op, len(ops), round(start, 7), round(end - start, 7)]
                    for ops, start, end in _merge_short_spans(lane, step.seconds * _MIN_SHARE)
                ],
            }
            for device, lane in step.lanes.items()
        ],
    }


def _step_caption(trace: Trace, program: str) -> str:
    """Returns a caption that names the traced step."""
    steps, rows = plural(len(trace.steps), "traced step"), plural(trace.rows, "row")
    return f"The fastest of {steps} of {program}, {rows}"


def _merge_short_spans(
    lane: Sequence[OpSpan], shortest: float
) -> Iterator[tuple[list[OpSpan], float, float]]:
    """Yields the ops of a lane with start and end; ops too short to be seen are merged.

    Args:
        lane: the ops of one device in their order.
        shortest: the shortest visible time, in seconds.
    """
    group: list[OpSpan] = []
    end = 0.0
    for span in lane:
        short = span.end - span.start < shortest
        if group and not (short and span.start - end < shortest):
            yield group, group[0].start, end
            group = []
        if short:
            group.append(span)
            end = span.end
        else:
            yield [span], span.start, span.end
    if group:
        yield group, group[0].start, end


def program_data(report: Report, before: Placement | None = None) -> dict[str, Any]:
    """Returns the data of one program.

    Args:
        report: the report; without verdicts, the program was only placed.
        before: an earlier placement of the program, which adds a view of the earlier devices.
    """
    evidence = report.evidence
    placement = evidence.placement
    places = DeviceTable(evidence, before)
    knows_flow = bool(placement.requested)
    number = {name: at for at, name in enumerate(placement.ops)}
    at = page_layout(placement)
    findings = findings_data(report, places, number)
    state, sentence, facts = headline(report, places)
    if (moved := report.baseline) is not None:
        findings += _changes_data(moved, number)
        facts = [*facts, f"{difference_headline(moved)}."]
        state = "differs" if moved and state != "broken" else state
    return {
        "program": placement.program,
        "conditions": conditions(placement),
        "state": state,
        "headline": sentence,
        "facts": list(facts),
        "notes": list(_notes(report)),
        "knows_flow": knows_flow,
        "knows_step": knows_flow and not analyze(placement).updates.unknown,
        "rows": {**at.tree, "roles": at.roles},
        "ops": _ops_data(placement, places, at),
        "copies": copies_data(placement, places, at.parts),
        "variables": list(variables_data(placement, number)),
        "rules": rules_data(report),
        "findings": findings,
        "uncounted": sorted(
            {
                device
                for finding in findings
                if finding["rule"] == "every-tower-counts"
                for device in finding["devices"]
            }
        ),
        "timeline": step_data(evidence.trace, placement.program, places),
        "towers": places.towers,
        "views": list(places.views),
        "devices": places.data(),  # the last entry, since the other entries add devices
    }


def _notes(report: Report) -> Iterator[str]:
    evidence = report.evidence
    yield from evidence.notes
    if not evidence.placement.complete:
        yield evidence.placement.complete.reason
    if evidence.measurement:
        yield run_conditions(evidence.measurement, evidence.placement.program)


class Table(NamedTuple):
    """Distinct texts, and the index of the text for each occurrence."""

    texts: Sequence[str]
    numbers: Sequence[int]


def index_texts(texts: Iterable[str]) -> Table:
    """Returns the distinct texts in the order of their first occurrence, with indices."""
    seen: dict[str, int] = {}
    numbers = [seen.setdefault(text, len(seen)) for text in texts]
    return Table(list(seen), numbers)


def _ops_data(placement: Placement, places: DeviceTable, at: PageLayout) -> dict[str, Any]:
    ops = placement.by_number
    types = index_texts(op.type for op in ops)
    lines = index_texts(placement.where(op.name) or "" for op in ops)
    asked = {kind.requested: kind.requested.short for kind in placement.kinds}
    requests = index_texts(asked[op.requested] for op in ops)
    steps = analyze(placement).updates.in_step if placement.requested else [1] * len(ops)
    return {
        "names": [printable(op.name) for op in ops],
        "types": types.texts,
        "type": types.numbers,
        "lines": lines.texts,
        "line": lines.numbers,
        "requests": requests.texts,
        "request": requests.numbers,
        "row": at.rows,
        "phase": list(map(int, at.phases)),
        "tower": at.towers,
        "step": list(steps),
        **places.views,
    }


def difference_data(
    difference: Difference, new: Placement, headline: str, before: Placement | None = None
) -> dict[str, Any]:
    """Returns the data of a compared placement, with its changes instead of findings.

    Args:
        difference: the changes.
        new: the placement that was compared.
        headline: the number of changes, in words.
        before: the earlier placement, whose devices are an additional view; None for a baseline.
    """
    data = program_data(Report(Evidence(new), (), difference), before=before)
    return data | {
        "state": "differs" if difference else "placed",
        "headline": f"{headline}.",
        "facts": list(difference.notes),
    }


def revision_data(program: ProgramChange, since: Since) -> dict[str, Any] | None:
    """Returns the data of a program compared with a git revision; None if the program is gone.

    The findings are the findings of newly broken rules. Changes, and rules that are no longer
    checked, are added in the form of findings.
    """
    if program.new is None or program.newly_broken is None:
        return None
    data = program_data(program.newly_broken)
    unchecked = [
        _change_data("no longer checked", change.new.rule, ())
        | {"consequence": change.new.reason or ""}
        for change in program.with_effect("unchecked")
    ]
    return data | {
        "state": "differs" if program.differs else "placed",
        "headline": f"{since_headline(program, since)}.",
        "facts": list(program.difference.notes) if program.difference else [],
        "findings": [*data["findings"], *unchecked],
        "rules": rules_data(program.new),
    }


def _changes_data(difference: Difference, number: Mapping[str, int]) -> list[dict[str, Any]]:
    """The changes of a placement, in the form of findings."""
    sections = {
        "moved": difference.moved,
        "new": difference.new_there,
        "gone": difference.gone,
    }
    return [
        _change_data(
            title, change_text(change), [number[name] for name in change.ops if name in number]
        )
        for title, changes in sections.items()
        for change in changes
    ]


def _change_data(title: str, message: str, ops: Iterable[int]) -> dict[str, Any]:
    """A change in the form of a finding, with the numbers of its ops."""
    return {
        "rule": title,
        "message": message,
        "ops": sorted(ops),
        **dict.fromkeys(("where", "source", "consequence", "fix", "follows"), ""),
        **{key: [] for key in ("others", "path", "figure", "objects", "devices")},
    }
