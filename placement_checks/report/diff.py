"""How two placements differ: for people and for programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from placement_checks.core.results import Difference, Places
from placement_checks.report.json import versions, written
from placement_checks.util.printable import printable
from placement_checks.util.text import plural

_SCHEMA = 1

_MOST = 20  # ops of a group that are listed


def render_json(difference: Difference) -> str:
    """One JSON document, its form fixed by ``"schema": 1``."""
    document = {
        "schema": _SCHEMA,
        "versions": versions(),
        "old": difference.old,
        "new": difference.new,
        "ops": difference.ops,
        "moved": [
            {
                "node": each.op,
                "op": each.type,
                "old": [str(device) for device in each.old],
                "new": [str(device) for device in each.new],
            }
            for each in difference.moved
        ],
        "removed": [{"node": node, "op": kind} for node, kind in difference.removed.items()],
        "added": [{"node": node, "op": kind} for node, kind in difference.added.items()],
        "unread": list(difference.unread),
    }
    return written(document)


def render_text(difference: Difference) -> str:
    """The ops in groups: those that went the same way, and those that only one has."""
    return "\n".join(map(printable, (*_text(difference), *difference.unread)))


def _text(difference: Difference) -> Iterator[str]:
    old, new = difference.old, difference.new
    if not difference:
        yield f"{old} and {new} have {plural(difference.ops, 'op')}, each on the same device."
        return
    ways: dict[tuple[Places, Places], list[str]] = defaultdict(list)
    for op, kind, before, after in difference.moved:
        ways[before, after].append(f"{op} ({kind})" if kind else op)
    for (before, after), ops in sorted(ways.items(), key=lambda way: -len(way[1])):
        yield from _group(f"{_shown(before)} -> {_shown(after)}", ops)
    for name, only in ((old, difference.removed), (new, difference.added)):
        if only:
            ops = [f"{op} ({kind})" if kind else op for op, kind in only.items()]
            yield from _group(f"only in {name}", ops)
    yield (
        f"of {plural(difference.ops, 'op')} in both, {len(difference.moved)} moved; "
        f"{len(difference.removed)} only in {old}, {len(difference.added)} only in {new}."
    )


def _group(title: str, ops: Sequence[str]) -> Iterator[str]:
    yield f"{title}: {plural(len(ops), 'op')}"
    yield from (f"  {op}" for op in ops[:_MOST])
    if len(ops) > _MOST:
        yield f"  and {len(ops) - _MOST} more, see --format json"
    yield ""


def _shown(places: Places) -> str:
    return " and ".join(device.short for device in places)
