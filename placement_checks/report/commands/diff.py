"""Renders the difference of two placements as text and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from placement_checks.core.op_types import VARIABLES
from placement_checks.core.results import Difference, Places
from placement_checks.report.common.json import versioned_json
from placement_checks.util.text import plural, printable

_MAX_LISTED = 20  # ops of a group


def render_json(difference: Difference) -> str:
    """Returns the JSON document."""
    document = {
        "old": difference.old,
        "new": difference.new,
        "ops": difference.ops,
        "moved": [
            {
                "node": moved.op,
                "op": moved.type,
                "old": [str(device) for device in moved.old],
                "new": [str(device) for device in moved.new],
            }
            for moved in difference.moved
        ],
        "removed": [{"node": node, "op": kind} for node, kind in difference.removed.items()],
        "added": [{"node": node, "op": kind} for node, kind in difference.added.items()],
        "unread": list(difference.unread),
    }
    return versioned_json(document, schema=1)


def render_text(difference: Difference) -> str:
    """Returns the moved ops by their devices, then the ops that only one placement has."""
    return "\n".join(map(printable, (*_text(difference), *difference.unread)))


def group_by_route(difference: Difference) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yields old devices, new devices and the types of the ops that moved, most ops first."""
    by_route: dict[tuple[Places, Places], dict[str, str]] = defaultdict(dict)
    for op, kind, before, after in difference.moved:
        by_route[before, after][op] = kind
    for (before, after), ops in sorted(by_route.items(), key=lambda route: -len(route[1])):
        yield _join_devices(before), _join_devices(after), ops


def label_ops(ops: Mapping[str, str]) -> Sequence[str]:
    """Returns ops with their types, variables first, since other ops are placed with them."""
    names = sorted(ops, key=lambda op: ops[op] not in VARIABLES)
    return [f"{op} ({ops[op]})" if ops[op] else op for op in names]


def _text(difference: Difference) -> Iterator[str]:
    old, new = difference.old, difference.new
    if not difference:
        yield f"{old} and {new} have {plural(difference.ops, 'op')}, each on the same device."
        return
    for before, after, ops in group_by_route(difference):
        yield from _group(f"{before} -> {after}", ops)
    for name, only_there in ((old, difference.removed), (new, difference.added)):
        if only_there:
            yield from _group(f"only in {name}", only_there)
    yield (
        f"of {plural(difference.ops, 'op')} in both, {len(difference.moved)} moved; "
        f"{len(difference.removed)} only in {old}, {len(difference.added)} only in {new}."
    )


def _group(title: str, ops: Mapping[str, str]) -> Iterator[str]:
    yield f"{title}: {plural(len(ops), 'op')}"
    yield from (f"  {op}" for op in label_ops(ops)[:_MAX_LISTED])
    if len(ops) > _MAX_LISTED:
        yield f"  and {len(ops) - _MAX_LISTED} more, see --format json"
    yield ""


def _join_devices(places: Places) -> str:
    return " and ".join(device.short for device in places)
