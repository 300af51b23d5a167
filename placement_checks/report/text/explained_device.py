"""What is known of one device: which ops ask for it and by which line, what it holds and does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.op_types import NO_COMPUTATION
from placement_checks.core.placement import Op, Placement, Tensor
from placement_checks.core.results import Verdict
from placement_checks.report.text.explained_op import findings_on, line_of
from placement_checks.report.text.rows import Row, in_rows
from placement_checks.util.text import joined, plural

_MOST_OPS = 10_000  # whose lines are looked up
_TYPES = 5  # of ops that are named


def explained_device(
    placement: Placement, device: Device, verdicts: Sequence[Verdict] = ()
) -> Iterator[str]:
    """A device as rows of text; ``verdicts`` are those of the rules on its program."""
    device = device if device.job else device.over(LOCALHOST)
    there = list(placement.assigned_to(device))
    asking = [op for op in placement.ops.values() if _asks(op, device)]
    is_one = placement.machine is None or placement.machine.has(device)
    return in_rows(
        device.short if is_one else f"{device.short}, which {placement.machine} does not have",
        [
            Row("asked for by", _asking(placement, asking)),
            Row("computes", [_computing(there)] if placement.assigned else []),
            Row("tower", _towers(placement, device) if placement.requested else []),
            Row("variables", _variables(placement, there)),
            Row("went elsewhere", _elsewhere(asking, device)),
            Row("findings", findings_on(device.short, verdicts)),
        ],
    )


def _asks(op: Op, device: Device) -> bool:
    """Whether it asks for the device, or for its task, and is there."""
    if op.requested.type is None:
        is_there = op.assigned is not None and op.assigned.matches(device)
        return is_there and bool(op.requested)
    return op.requested.over(LOCALHOST).matches(device)


def _asking(placement: Placement, ops: Sequence[Op]) -> list[str]:
    """How many ops ask for it, by the lines that decided that; those that go with others last."""
    if not placement.requested:
        return [f"not known: {placement.requested}"]
    lines = Counter(placement.details.device_line(op.name) for op in ops[:_MOST_OPS])
    others = lines.pop(None, 0)
    told = [
        f"{plural(count, 'op')}, by {line_of(line)}" for line, count in lines.most_common() if line
    ]
    if others:
        told.append(f"{plural(others, 'op')}, by no line of the program")
    return told or ["no op"]


def _computing(ops: Sequence[Op]) -> str:
    types = Counter(op.type for op in ops if op.type not in NO_COMPUTATION)
    named = [f"{count:,} {kind}" for kind, count in types.most_common(_TYPES)]
    more = f", and {len(types) - _TYPES} other types" if len(types) > _TYPES else ""
    return f"{plural(types.total(), 'op')}: {', '.join(named)}{more}" if named else "nothing"


def _towers(placement: Placement, device: Device) -> list[str]:
    towers = [tower for tower in analyse(placement).towers if device in tower.devices]
    return [
        f"the tower on {tower}, which reads {plural(len(tower.reads), 'variable')}"
        for tower in towers
    ]


def _variables(placement: Placement, there: Sequence[Op]) -> list[str]:
    names = {op.name for op in there}
    held = [variable for variable in placement.variables if variable.name in names]
    size = sum(Tensor(variable.dtype, variable.shape).bytes or 0 for variable in held)
    shown = [variable.name for variable in held[:_TYPES]]
    more = f" and {len(held) - _TYPES} more" if len(held) > _TYPES else ""
    return [f"{len(held)}, {plural(size, 'byte')}: {', '.join(shown)}{more}"] if held else []


def _elsewhere(asking: Sequence[Op], device: Device) -> list[str]:
    """The ops that asked for it and are not there, by where they are and why."""
    ops: dict[tuple[str, str], list[str]] = defaultdict(list)
    for op in asking:
        if op.assigned and not op.assigned.matches(device):
            ops[op.assigned.short, op.fallback_reason].append(op.name)
    return [
        f"{joined(names[:1])}{_more(names)} to {where}" + (f": {reason}" if reason else "")
        for (where, reason), names in ops.items()
    ]


def _more(names: Sequence[str]) -> str:
    return f" and {plural(len(names) - 1, 'other op')}" if len(names) > 1 else ""
