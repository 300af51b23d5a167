"""Renders a placement log as text, as JSON, and as a log with one placement per line."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import itemgetter

from placement_checks.core.devices import Device
from placement_checks.core.op_types import VARIABLES
from placement_checks.logs import Log, text_of
from placement_checks.report.common.json import escape_controls
from placement_checks.util.text import align_columns, plural, printable

_SCHEMA = 1

_KIND = itemgetter(1, 2)  # op and device of a record
_MAX_KINDS = 4
_MAX_MOVED = 20


def render_json(log: Log) -> str:
    """Returns the JSON document, with an entry for each distinct placement.

    Its schema has version 1.
    """
    document = {
        "schema": _SCHEMA,
        "records": log.records,
        "torn": log.torn,
        "ops": [],
        "reason": log.reason,
        "troubles": list(log.troubles),
    }
    before, empty, after = json.dumps(document, ensure_ascii=False).partition('"ops": []')
    return escape_controls(f"{before}{empty[:-1]}{', '.join(_entries(log))}]{after}") + "\n"


def _entries(log: Log) -> Iterator[str]:
    """Yields the JSON of each placement; each pair of op and device is encoded only once."""
    encoded = json.JSONEncoder(ensure_ascii=False).encode
    kinds = {
        (op, device): encoded({"op": op, "device": device})[1:-1]
        for op, device in set(map(_KIND, log.counts))
    }
    for (node, op, device), count in log.counts.items():
        yield f'{{"node": {encoded(node)}, {kinds[op, device]}, "count": {count}}}'


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
