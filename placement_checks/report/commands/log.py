"""Renders a placement log as text, as JSON, and as a log with one placement per line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import itemgetter
from typing import Annotated, Literal

from msgspec import Meta

from placement_checks.core.devices import Device
from placement_checks.core.op_types import VARIABLES
from placement_checks.logs import Log, text_of
from placement_checks.report.common.json import VERSION, JsonObject, to_json
from placement_checks.util.text import align_columns, plural, printable

_KIND = itemgetter(1, 2)  # op and device of a record
_MAX_KINDS = 4
_MAX_MOVED = 20


class OpObject(JsonObject):
    node: str | None
    op: Annotated[str | None, Meta(description="The type of the op.")]
    device: Annotated[
        str,
        Meta(description="The full name of the device; empty if the op was not placed."),
    ]
    count: Annotated[int, Meta(ge=1, description="The number of records of this placement.")]


class LogDocument(JsonObject):
    schema: Annotated[Literal[1], VERSION]
    records: Annotated[
        int,
        Meta(
            ge=0,
            description="The number of lines that record a placement, including duplicates.",
        ),
    ]
    torn: Annotated[int, Meta(ge=0, description="The number of incomplete records.")]
    ops: Annotated[list[OpObject], Meta(description="The distinct placements.")]
    reason: Annotated[str | None, Meta(description="The reason why there are no records.")]
    troubles: Annotated[
        list[str], Meta(description="The parts of the log that could not be read.")
    ]


def render_json(log: Log) -> str:
    """Returns the JSON document, with an entry for each distinct placement."""
    document = LogDocument(
        schema=1,
        records=log.records,
        torn=log.torn,
        ops=[
            OpObject(node=node, op=op, device=device, count=count)
            for (node, op, device), count in log.counts.items()
        ],
        reason=log.reason,
        troubles=list(log.troubles),
    )
    return to_json(document, indent=None) + "\n"


def render_lines(log: Log) -> str:
    """Returns a line for every placement, repeated placements included."""
    return "".join(
        f"{printable(text_of(record))}\n" * count for record, count in log.counts.items()
    )


def render_text(log: Log) -> str:
    """Returns a table of the devices, and the ops on more than one device."""
    return "\n".join(map(printable, _text(log))) + "\n"


def problems(log: Log) -> Iterator[str]:
    """Yields why there are no placements, or how many records are torn, if any."""
    if log.reason:
        yield f"{log.name}: no placements; {log.reason}"
    elif log.torn:
        yield log.torn_message


def _text(log: Log) -> Iterator[str]:
    if not log.reason:
        yield (
            f"{log.name}: {plural(log.records, 'record')}, "
            f"{plural(sum(log.counts.values()), 'placement')} of {plural(len(log.counts), 'op')}"
        )
        yield ""
        yield from _table(log)
        if log.moved:
            yield ""
            yield from _moved_ops(log)
        if log.torn:
            yield ""
    yield from problems(log)


def _table(log: Log) -> Iterator[str]:
    by_device: dict[str, Counter[str]] = defaultdict(Counter)
    for (op, device), number in Counter(map(_KIND, log.counts)).items():
        by_device[device][op or ""] += number
    rows: list[tuple[str, ...]] = [("device", "ops", "variables", "kinds", "")]
    for device in sorted(by_device, key=Device.parse):
        kinds = by_device[device]
        variables = sum(kinds[kind] for kind in VARIABLES)
        known_kinds = len(kinds) - ("" in kinds)
        rows.append(
            (
                _device_label(device),
                f"{kinds.total():,}",
                f"{variables:,}" if variables else "",
                f"{known_kinds:,}" if known_kinds else "",
                ", ".join(f"{kind} {n}" for kind, n in kinds.most_common(_MAX_KINDS) if kind)
                + (", …" if len(kinds) > _MAX_KINDS else ""),
            )
        )
    yield from (f"  {line}" for line in align_columns(rows))


def _device_label(device: str) -> str:
    return Device.parse(device).short or "(not placed)"


def _moved_ops(log: Log) -> Iterator[str]:
    moved = log.moved
    yield f"{plural(len(moved), 'op')} on more than one device:"
    for node, records in list(moved.items())[:_MAX_MOVED]:
        where = ", ".join(
            f"{_device_label(record.device)} ({plural(log.counts[record], 'time')})"
            for record in records
        )
        yield f"  {node} ({records[0].op or 'of unknown type'}): {where}"
    if len(moved) > _MAX_MOVED:
        yield f"  and {len(moved) - _MAX_MOVED} more, see --format json"
