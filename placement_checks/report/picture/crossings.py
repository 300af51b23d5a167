"""The copies of a step with what they carry, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.addresses import Part
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.analysis.transfers import copies
from placement_checks.core.devices import Device
from placement_checks.core.op_types import COLLECTIVES, CONST
from placement_checks.core.placement import Placement, producer_of
from placement_checks.report.picture.packing import runs
from placement_checks.report.picture.phases import KINDS, kind_of
from placement_checks.report.picture.places import Places

_UNKNOWN = -1


class Crossing(NamedTuple):
    """One copy: the op that yields it, what it is (`KINDS`), its bytes, or those of one row."""

    op: int
    source: Device
    to: Device
    kind: int
    bytes: int | None
    a_row: int | None


def crossings(placement: Placement, places: Places, parts: Sequence[Part]) -> dict[str, Any]:
    """What one step copies.

    Where the size hangs on the rows of the batch, the bytes are -1, and ``a_row`` has them for
    one row a tower. What devices reduce among themselves leaves each and comes back to it.
    """
    found: list[Crossing] = []
    if placement.assigned and placement.requested:
        found = [*_copied(placement, parts), *_reduced(placement)]
    return {
        "op": runs(each.op for each in found),
        "from": runs(places.number(each.source) for each in found),
        "to": runs(places.number(each.to) for each in found),
        "kind": runs(each.kind for each in found),
        "bytes": runs(_UNKNOWN if each.bytes is None else each.bytes for each in found),
        "a_row": runs(each.a_row or 0 for each in found),
    }


def _copied(placement: Placement, parts: Sequence[Part]) -> Iterator[Crossing]:
    analysis = analyse(placement)
    number, types = analysis.flow.number, analysis.flow.types
    found = copies(placement)
    a_row = {}
    if any(copy.bytes is None for copy in found):
        towers = len(analysis.towers) or 1
        a_row = {(copy.tensor, copy.to): copy.bytes for copy in copies(placement, towers)}
    for copy in found:
        op = number[producer_of(copy.tensor)]
        kind = kind_of("other" if types[op] == CONST else parts[op])
        of_row = a_row.get((copy.tensor, copy.to)) if copy.bytes is None else None
        yield Crossing(op, copy.source, copy.to, kind, copy.bytes, of_row)


def _reduced(placement: Placement) -> Iterator[Crossing]:
    """What each device gives to a collective op, and has back, where several take part."""
    flow, steps = analyse(placement).flow, analyse(placement).updates.steps
    ops = placement.by_number
    for here in flow.having(COLLECTIVES.__contains__):
        device = ops[here].assigned
        others = {ops[source].assigned for source in flow.inputs[here]} - {device, None}
        if device is None or not others or not steps[here]:
            continue
        outputs = placement.details.outputs(flow.names[here])
        size = outputs[0].bytes if outputs else None
        yield Crossing(here, device, device, KINDS.index("all-reduce"), size, None)
