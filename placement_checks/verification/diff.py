"""Compares two placements: by the addresses of their ops, or with a log by their names."""

from __future__ import annotations

from collections import defaultdict

from placement_checks.baseline.compare import compare_placements
from placement_checks.core.baseline import Change, Difference, device_text
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Placement
from placement_checks.util.text import join_and, plural

_MOST_NAMED = 10  # ops of a change


def compare(old: Placement, new: Placement) -> Difference:
    """Returns what differs between two placements.

    Ops are compared by their addresses, as with a baseline, if both placements have the data flow
    of their programs. A log lacks it, so a comparison with a log is by the names of ops.

    Raises:
        InputError: a placement has no assigned devices.
    """
    if old.requested and new.requested:
        return compare_placements(old, new, old.program)
    return compare_names(old, new, old.program)


def compare_names(
    old: Placement, new: Placement, name: str, *, most_named: int = _MOST_NAMED
) -> Difference:
    """Returns the ops that are on other devices, or that only one of two placements has, by name.

    Ops that moved between the same devices are one change, most ops first.

    Args:
        old: the placement before. In a log, an op may have several devices.
        new: the placement now.
        name: the name of the old placement in reports.
        most_named: the number of ops that a change shows.

    Raises:
        InputError: a placement has no assigned devices.
    """
    before, after = _places(old), _places(new)
    types = {op.name: op.type for placement in (old, new) for op in placement.ops.values()}
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for op in {**before, **after}:
        if before.get(op) != after.get(op):
            names[before.get(op, ""), after.get(op, "")].append(op)
    found: dict[str, list[Change]] = {"moved": [], "new": [], "gone": []}
    for (was, now), ops in sorted(names.items(), key=lambda entry: -len(entry[1])):
        ops.sort(key=lambda op: types[op] not in VARIABLES)  # other ops are placed with them
        shown = [f"{types[op]} {op}".lstrip() for op in ops[:most_named]]
        note = ", ".join(shown) + (", ..." if len(ops) > len(shown) else "")
        kind = "moved" if was and now else "gone" if was else "new"
        found[kind].append(Change("ops", plural(len(ops), "op"), was, now, ops, note))
    return Difference(
        name,
        new.program,
        sum(places == after.get(op) for op, places in before.items()),
        found["moved"],
        found["new"],
        found["gone"],
        notes=[f"{each.program}: {each.complete}" for each in (old, new) if not each.complete],
        is_partial=not (old.complete and new.complete),
    )


def _places(placement: Placement) -> dict[str, str]:
    """The devices of each op, in one text."""
    if not placement.assigned:
        raise InputError(placement.program, str(placement.assigned))
    if not placement.places:
        raise InputError(placement.program, "has no op with a device", is_predicate=True)
    return {op: join_and(map(device_text, devices)) for op, devices in placement.places.items()}
