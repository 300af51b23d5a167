"""What is known of one op or variable: where it was asked for, why it is there, who uses it.

What is known of one device: which ops ask for it and by which line, what it holds and does.

What a rule means, with its example, for people.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.roles import roles
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.op_types import NO_COMPUTATION, VARIABLES, holds_state
from placement_checks.core.placement import (
    GLOBAL,
    TRAINABLE,
    Frame,
    Op,
    Placement,
    Tensor,
    producer_of,
)
from placement_checks.core.results import Verdict
from placement_checks.report.common.source import source_text
from placement_checks.report.text.layout import Row, in_rows, show
from placement_checks.util.text import join_and, plural

_COLLECTIONS = {TRAINABLE: "TRAINABLE_VARIABLES", GLOBAL: "GLOBAL_VARIABLES"}


def explained_op(
    placement: Placement, name: str, verdicts: Sequence[Verdict] = ()
) -> Iterator[str]:
    """An op as rows of text; ``verdicts`` are those of the rules on its program."""
    op = placement.ops[name]
    knows_flow = bool(placement.requested)
    use = _of_variable if op.type in VARIABLES else _of_op
    return in_rows(
        f"{name} ({op.type}){_value(placement, op)}",
        [
            Row("built at", [line_of(frame) for frame in placement.details.frames(name)]),
            Row("asks for", list(_asked(placement, op))),
            Row("placed on", [_placed(placement, op)]),
            *(use(placement, op) if knows_flow else ()),
            Row("findings", findings_on(name, verdicts)),
        ],
    )


def line_of(frame: Frame) -> str:
    """A line of the user's with what it says, where that can be read."""
    return "  ".join(filter(None, (str(frame), source_text(str(frame)))))


def findings_on(name: str, verdicts: Iterable[Verdict]) -> list[str]:
    """What the rules have found on an object."""
    return [
        f"{verdict.rule}: {finding.message}"
        for verdict in verdicts
        for finding in verdict.findings
        if name in (finding.object, *finding.others)
    ]


def _value(placement: Placement, op: Op) -> str:
    """The dtype, shape and bytes of what an op yields, or of what a variable holds."""
    held = [
        Tensor(variable.dtype, variable.shape)
        for variable in placement.variables
        if variable.name == op.name and variable.dtype
    ]
    yields = held or placement.details.outputs(op.name)
    return f": {', '.join(map(_tensor, yields))}" if yields else ""


def _tensor(tensor: Tensor) -> str:
    shape = "of unknown shape"
    if tensor.shape is not None:
        shape = f"[{', '.join('?' if dim is None else str(dim) for dim in tensor.shape)}]"
    size = "" if tensor.bytes is None else f", {plural(tensor.bytes, 'byte')}"
    return f"{tensor.dtype} {shape}{size}"


def _asked(placement: Placement, op: Op) -> Iterator[str]:
    if not placement.requested:
        yield f"not known: {placement.requested}"
        return
    line = placement.details.device_line(op.name)
    yield (op.requested.short or "no device") + (f", by {line_of(line)}" if line else "")
    for name in op.colocated:
        other = placement.ops.get(name)
        asks = f", which asks for {other.requested.short or 'no device'}" if other else ""
        yield f"the device of {name}{asks}"


def _placed(placement: Placement, op: Op) -> str:
    """Where the placer put it, and why it is not elsewhere."""
    for refusal in placement.refusals:
        if refusal.op == op.name:
            return f"no device, the placer refuses it: {refusal.message.partition(chr(10))[0]}"
    if op.assigned is None:
        unknown = placement.assigned
        return f"not known: {'it was not placed' if unknown is True else unknown}"
    return f"{op.assigned.short}, {_reason(placement, op)}"


def _reason(placement: Placement, op: Op) -> str:
    if op.fallback_reason:
        return op.fallback_reason
    if not placement.requested:
        return "as the log says"
    assert op.assigned is not None
    if op.requested.type and op.assigned.matches(op.requested):
        return "as it asks"
    if op.colocated:
        return f"with {op.colocated[0]}, which it is bound to"
    for source in op.inputs:
        holder = placement.ops.get(producer_of(source))
        if holder and holds_state(holder.type) and holder.assigned == op.assigned:
            return f"where {holder.name} is, which it takes"
    return "which the placer chose"


def _of_variable(placement: Placement, op: Op) -> Iterator[Row]:
    analysis = analyse(placement)
    within = [
        key for name, key in _COLLECTIONS.items() if op.name in placement.collected.get(name, ())
    ]
    if any(placement.collections.values()):
        yield Row("is in", [join_and(within) or f"neither {' nor '.join(_COLLECTIONS.values())}"])
    role = roles(placement)[op.name]
    yield Row("role", [f"{role}: {role.reason}"])
    readers = analysis.reads_by_gpu.readers.get(op.name, [])
    yield Row("read by", list(_by_tower(placement, readers)) or ["nothing that computes"])
    updates = analysis.updates.by_variable.get(op.name, [])
    nothing = analysis.updates.unknown or "nothing in the step"
    yield Row("updated by", [_told(placement, update.op) for update in updates] or [nothing])
    yield Row("gradient", list(_gradients(placement, op.name)))


def _gradients(placement: Placement, variable: str) -> Iterator[str]:
    """The gradients that its updates take, with the towers that they come from."""
    analysis, gradients = analyse(placement), gradient_flow(placement)
    updates: Sequence[Update] = gradients.trained.get(variable, ())
    for update in updates:
        towers = gradients.towers(update)
        of = f", of {analysis.names_of(towers)}" if towers else ""
        for value in update.values:
            if analysis.towers_behind[value] & analysis.gradient_bit:
                yield f"{_told(placement, value)}{of}"
    if not updates and variable in placement.collected.get(TRAINABLE, ()):
        yield analysis.updates.unknown or "none that an update takes"


def _of_op(placement: Placement, op: Op) -> Iterator[Row]:
    analysis = analyse(placement)
    flow = analysis.flow
    number = flow.number[op.name]
    yield Row("takes", [_told(placement, source) for source in dict.fromkeys(flow.inputs[number])])
    yield Row("read by", list(_by_tower(placement, flow.consumers[number])))
    waiting = flow.control_inputs.get(number, ())
    yield Row("waits for", [_told(placement, other) for other in waiting])
    if analysis.backward.ops[number]:
        forward = analysis.backward.forward.get(number)
        of = [_told(placement, forward[0])] if forward else []
        yield Row("gradient of", of)
    else:
        backward = (op for op, (of, _) in analysis.backward.forward.items() if of == number)
        yield Row("gradient", [_told(placement, other) for other in backward])


def _by_tower(placement: Placement, ops: Iterable[int]) -> Iterator[str]:
    """The ops of each tower, the first of them by name, and those of none."""
    analysis = analyse(placement)
    by_tower: dict[int, list[int]] = defaultdict(list)
    for op in ops:
        by_tower[analysis.tower_of[op]].append(op)
    for tower, (first, *others) in sorted(by_tower.items()):
        whose = f"the tower on {analysis.towers[tower]}" if tower >= 0 else "no tower"
        more = f", and {plural(len(others), 'other op')}" if others else ""
        yield f"{whose}: {_told(placement, first)}{more}"


def _told(placement: Placement, number: int) -> str:
    """An op with its type, device and line."""
    op = placement.by_number[number]
    device = op.assigned or op.requested
    on = f" on {device.short}" if device else ""
    line = placement.where(op.name)
    return f"{op.name} ({op.type}){on}" + (f", {line}" if line else "")


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
        f"{join_and(names[:1])}{_more(names)} to {where}" + (f": {reason}" if reason else "")
        for (where, reason), names in ops.items()
    ]


def _more(names: Sequence[str]) -> str:
    return f" and {plural(len(names) - 1, 'other op')}" if len(names) > 1 else ""


_STYLES = {"-": "red", "+": "green"}


def write(explanation: str, example: Sequence[str], console: Console) -> None:
    """Print the explanation of a rule, and the diff from what breaks it to what mends it."""
    diff = _diff(example) if example else ()
    for line in (*map(Text, explanation.splitlines()), *diff):
        show(console, line)


def _diff(example: Sequence[str]) -> Iterator[Text]:
    yield Text()
    yield Text("A program that breaks it (-), and mended (+); tf1 is tf.compat.v1:")
    yield Text()
    yield from (Text(line, _STYLES.get(line[:1], "")) for line in example)
