"""The copies of a step with what they carry, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placement_checks.analysis.addresses import Part
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.analysis.transfers import copies
from placement_checks.core.op_types import CONST
from placement_checks.core.placement import Placement, producer_of
from placement_checks.report.picture.packing import runs
from placement_checks.report.picture.phases import kind_of
from placement_checks.report.picture.places import Places

_UNKNOWN = -1


def crossings(placement: Placement, places: Places, parts: Sequence[Part]) -> dict[str, Any]:
    """What one step copies: the op that yields it, from where, to where, what it is, its bytes.

    Where the size hangs on the rows of the batch, the bytes are -1, and ``a_row`` has them for
    one row a tower.
    """
    found = copies(placement) if placement.assigned and placement.requested else []
    a_row = {}
    if any(copy.bytes is None for copy in found):
        towers = len(analyse(placement).towers) or 1
        a_row = {(copy.tensor, copy.to): copy.bytes for copy in copies(placement, towers)}
    number = analyse(placement).flow.number if found else {}
    ops = [number[producer_of(copy.tensor)] for copy in found]
    kinds = [
        kind_of("other" if placement.by_number[op].type == CONST else parts[op]) for op in ops
    ]
    return {
        "op": runs(ops),
        "from": runs(places.number(copy.source) for copy in found),
        "to": runs(places.number(copy.to) for copy in found),
        "kind": runs(kinds),
        "bytes": runs(_UNKNOWN if copy.bytes is None else copy.bytes for copy in found),
        "a_row": runs(
            a_row.get((copy.tensor, copy.to)) or 0 if copy.bytes is None else 0 for copy in found
        ),
    }
