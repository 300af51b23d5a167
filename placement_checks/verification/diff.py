"""Compares two placements op by op."""

from __future__ import annotations

from collections.abc import Mapping

from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.core.results import Difference, MovedOp, Places


def compare(old: Placement, new: Placement) -> Difference:
    """The ops that only one of two placements has, and the ops that are on different devices.

    Raises:
        InputError: a placement has no assigned devices.
    """
    before, after = _places(old), _places(new)
    types = {op.name: op.type for placement in (old, new) for op in placement.ops.values()}
    return Difference(
        old.program,
        new.program,
        len(before.keys() & after.keys()),
        [
            MovedOp(name, types[name], places, after[name])
            for name, places in before.items()
            if name in after and places != after[name]
        ],
        {name: types[name] for name in before if name not in after},
        {name: types[name] for name in after if name not in before},
        [
            f"{placement.program}: {placement.complete}"
            for placement in (old, new)
            if not placement.complete
        ],
    )


def _places(placement: Placement) -> Mapping[str, Places]:
    if not placement.assigned:
        raise InputError(placement.program, str(placement.assigned))
    if not placement.places:
        raise InputError(placement.program, "has no op with a device", is_predicate=True)
    return placement.places
