"""Explains an op, a variable, a device or a rule, for the command `explain`.

For an op or variable, the explanation has its source lines, the requested and the assigned device
with the reason, its uses and its findings. For a device, it has the ops that request the device,
and its ops, towers, variables and findings. For a rule, it has the explanation and an example.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.objectives import objectives
from placement_checks.analysis.variables.roles import roles
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.evidence import NOT_BUILT_FOR_ONE
from placement_checks.core.frames import Frame
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import NO_COMPUTATION, VARIABLES, holds_state
from placement_checks.core.placement import (
    GLOBAL,
    TRAINABLE,
    Op,
    Placement,
    Tensor,
    producer_of,
)
from placement_checks.core.results import Verdict
from placement_checks.report.common.source import source_text
from placement_checks.report.text.layout import Row, layout_rows, print_line
from placement_checks.step.comparison import State, compare_steps
from placement_checks.util.text import join_and, listed, plural

_COLLECTIONS = {TRAINABLE: "TRAINABLE_VARIABLES", GLOBAL: "GLOBAL_VARIABLES"}


def explain_op(
    placement: Placement,
    name: str,
    verdicts: Sequence[Verdict] = (),
    one_gpu: Placement | Missing = NOT_BUILT_FOR_ONE,
) -> Iterator[str]:
    """Yields the explanation of an op as rows of text.

    Args:
        placement: the program.
        name: the op.
        verdicts: the verdicts on the program.
        one_gpu: the program for one GPU, with which a trained variable is compared.
    """
    op = placement.ops[name]
    knows_flow = bool(placement.requested)
    use = _variable_rows if op.type in VARIABLES else _op_rows
    return layout_rows(
        f"{name} ({op.type}){_value_text(placement, op)}",
        [
            Row("built at", [line_with_source(frame) for frame in placement.details.frames(name)]),
            Row("requests", list(_requested_devices(placement, op))),
            Row("placed on", [_assigned_device(placement, op)]),
            *(use(placement, op) if knows_flow else ()),
            Row("as on one GPU", list(_equality(placement, name, one_gpu))),
            Row("findings", findings_on(name, verdicts)),
        ],
    )


def line_with_source(frame: Frame) -> str:
    """Returns a line of the user's code, followed by its text if the file can be read."""
    return "  ".join(filter(None, (str(frame), source_text(str(frame)))))


def _equality(placement: Placement, name: str, one_gpu: Placement | Missing) -> Iterator[str]:
    """Whether a trained variable has the same value after the step as on one GPU."""
    if isinstance(one_gpu, Missing) or name not in placement.collected.get(TRAINABLE, ()):
        return
    found = compare_steps(placement, one_gpu)
    if isinstance(found, Missing):
        yield f"not compared: {found}"
        return
    for variable in found.trained:
        if name not in (variable, *found.copies.get(variable, ())):
            continue
        answer = found.variables[variable]
        if answer.difference is not None:
            is_certain = answer.state is State.DIFFERS
            yield f"{'no' if is_certain else 'not proved'}: {answer.difference.text}"
            continue
        assumed = "; ".join(sorted(assumption.value for assumption in found.assumed))
        yield "proved, for every batch" + (f", if {assumed}" if assumed else "")


def findings_on(name: str, verdicts: Iterable[Verdict]) -> list[str]:
    """Returns the findings on an object."""
    return [
        f"{verdict.rule}: {finding.message}"
        for verdict in verdicts
        for finding in verdict.findings
        if name in (finding.object, *finding.others)
    ]


def _value_text(placement: Placement, op: Op) -> str:
    """The dtype, shape and bytes of the outputs of an op, or of a variable."""
    held = [
        Tensor(variable.dtype, variable.shape)
        for variable in placement.variables
        if variable.name == op.name and variable.dtype
    ]
    yields = held or placement.details.outputs(op.name)
    return f": {', '.join(map(_tensor_text, yields))}" if yields else ""


def _tensor_text(tensor: Tensor) -> str:
    shape = "of unknown shape"
    if tensor.shape is not None:
        shape = f"[{', '.join('?' if dim is None else str(dim) for dim in tensor.shape)}]"
    size = "" if tensor.bytes is None else f", {plural(tensor.bytes, 'byte')}"
    return f"{tensor.dtype} {shape}{size}"


def _requested_devices(placement: Placement, op: Op) -> Iterator[str]:
    if not placement.requested:
        yield f"unknown: {placement.requested}"
        return
    line = placement.details.device_line(op.name)
    yield (op.requested.short or "no device") + (f", by {line_with_source(line)}" if line else "")
    for name in op.colocated:
        other = placement.ops.get(name)
        request = f", which requests {other.requested.short or 'no device'}" if other else ""
        yield f"the device of {name}{request}"


def _assigned_device(placement: Placement, op: Op) -> str:
    """The device that the placer assigned to an op, with the reason."""
    for refusal in placement.refusals:
        if refusal.op == op.name:
            return f"no device, the placer refuses the op: {refusal.message.partition(chr(10))[0]}"
    if op.assigned is None:
        unknown = placement.assigned
        return f"unknown: {'the op was not placed' if unknown is True else unknown}"
    return f"{op.assigned.short}, {_reason(placement, op)}"


def _reason(placement: Placement, op: Op) -> str:
    if op.fallback_reason:
        return op.fallback_reason
    if not placement.requested:
        return "as the log states"
    assert op.assigned is not None
    if op.requested.type and op.assigned.matches(op.requested):
        return "as requested"
    if op.colocated:
        return f"colocated with {op.colocated[0]}"
    for source in op.inputs:
        holder = placement.ops.get(producer_of(source))
        if holder and holds_state(holder.type) and holder.assigned == op.assigned:
            return f"with its input {holder.name}"
    return "chosen by the placer"


def _variable_rows(placement: Placement, op: Op) -> Iterator[Row]:
    analysis = analyze(placement)
    within = [
        key for name, key in _COLLECTIONS.items() if op.name in placement.collected.get(name, ())
    ]
    if any(placement.collections.values()):
        yield Row("is in", [join_and(within) or f"neither {' nor '.join(_COLLECTIONS.values())}"])
    role = roles(placement)[op.name]
    yield Row("role", [f"{role}: {role.reason}"])
    readers = analysis.reads_by_site.readers.get(op.name, [])
    yield Row("read by", list(_by_tower(placement, readers)) or ["no op that computes"])
    updates = analysis.updates.by_variable.get(op.name, [])
    nothing = _unknown_updates(placement) or "no op of the step"
    yield Row(
        "updated by", [_describe_op(placement, update.op) for update in updates] or [nothing]
    )
    yield Row("gradient", list(_gradients(placement, op.name)))
    yield Row("objective", list(filter(None, [objectives(placement).get(op.name, "")])))


def _gradients(placement: Placement, variable: str) -> Iterator[str]:
    """Yields the gradients that the updates of a variable apply, with their towers."""
    analysis, gradients = analyze(placement), gradient_flow(placement)
    updates: Sequence[Update] = gradients.trained.get(variable, ())
    for update in updates:
        towers = gradients.towers(update)
        of = f", of {analysis.names_of(towers)}" if towers else ""
        for value in update.values:
            if analysis.has_gradient(value):
                yield f"{_describe_op(placement, value)}{of}"
    if not updates and variable in placement.collected.get(TRAINABLE, ()):
        yield _unknown_updates(placement) or "no update applies a gradient"


def _unknown_updates(placement: Placement) -> str:
    """Why the updates of a step are unknown, with the fix; "" if they are known."""
    missing = analyze(placement).updates.missing
    return "" if missing is None else str(missing)


def _op_rows(placement: Placement, op: Op) -> Iterator[Row]:
    analysis = analyze(placement)
    flow = analysis.flow
    number = flow.number[op.name]
    yield Row(
        "inputs",
        [_describe_op(placement, source) for source in dict.fromkeys(flow.inputs[number])],
    )
    yield Row("read by", list(_by_tower(placement, flow.consumers[number])))
    waiting = flow.control_inputs.get(number, ())
    yield Row("waits for", [_describe_op(placement, other) for other in waiting])
    if analysis.backward.ops[number]:
        forward = analysis.backward.forward.get(number)
        of = [_describe_op(placement, forward[0])] if forward else []
        yield Row("gradient of", of)
    else:
        backward = (op for op, (of, _) in analysis.backward.forward.items() if of == number)
        yield Row("gradient", [_describe_op(placement, other) for other in backward])


def _by_tower(placement: Placement, ops: Iterable[OpId]) -> Iterator[str]:
    """Yields the first op of each tower, and without a tower, with the number of its other ops."""
    analysis = analyze(placement)
    by_tower: dict[TowerIndex | None, list[OpId]] = defaultdict(list)
    for op in ops:
        by_tower[analysis.tower_of[op]].append(op)
    for tower in (None, *analysis.tower_indices):
        if tower not in by_tower:
            continue
        first, *others = by_tower[tower]
        owner = "no tower" if tower is None else f"the tower on {analysis.towers[tower]}"
        more = f", and {plural(len(others), 'other op')}" if others else ""
        yield f"{owner}: {_describe_op(placement, first)}{more}"


def _describe_op(placement: Placement, number: int) -> str:
    """An op with its type, device and line."""
    op = placement.by_number[number]
    device = op.assigned or op.requested
    on = f" on {device.short}" if device else ""
    line = placement.where(op.name)
    return f"{op.name} ({op.type}){on}" + (f", {line}" if line else "")


_MOST_OPS = 10_000  # ops with looked-up lines
_MOST_NAMED = 5  # types of ops, or variables


def explain_device(
    placement: Placement, device: Device, verdicts: Sequence[Verdict] = ()
) -> Iterator[str]:
    """Yields the explanation of a device as rows of text."""
    device = device if device.job else device.over(LOCALHOST)
    there = list(placement.assigned_to(device))
    requesting = [op for op in placement.ops.values() if _requests(op, device)]
    is_one = placement.machine is None or placement.machine.has(device)
    return layout_rows(
        device.short if is_one else f"{device.short}, which {placement.machine} does not have",
        [
            Row("requested by", _requesting_lines(placement, requesting)),
            Row("computes", [_computation(there)] if placement.assigned else []),
            Row("tower", _towers(placement, device) if placement.requested else []),
            Row("variables", _variables(placement, there)),
            Row("placed elsewhere", _ops_elsewhere(requesting, device)),
            Row("findings", findings_on(device.short, verdicts)),
        ],
    )


def _requests(op: Op, device: Device) -> bool:
    """Whether an op requests a device, or requests only its task and is on the device."""
    if op.requested.type is None:
        is_there = op.assigned is not None and op.assigned.matches(device)
        return is_there and bool(op.requested)
    return op.requested.over(LOCALHOST).matches(device)


def _requesting_lines(placement: Placement, ops: Sequence[Op]) -> list[str]:
    """The number of requesting ops by the line of the request; ops without a line last."""
    if not placement.requested:
        return [f"unknown: {placement.requested}"]
    lines = Counter(placement.details.device_line(op.name) for op in ops[:_MOST_OPS])
    others = lines.pop(None, 0)
    texts = [
        f"{plural(count, 'op')}, by {line_with_source(line)}"
        for line, count in lines.most_common()
        if line
    ]
    if others:
        texts.append(f"{plural(others, 'op')}, by no line of the program")
    return texts or ["no op"]


def _computation(ops: Sequence[Op]) -> str:
    types = Counter(op.type for op in ops if op.type not in NO_COMPUTATION)
    named = [f"{count:,} {kind}" for kind, count in types.most_common(_MOST_NAMED)]
    more = f", and {len(types) - _MOST_NAMED} other types" if len(types) > _MOST_NAMED else ""
    return f"{plural(types.total(), 'op')}: {', '.join(named)}{more}" if named else "nothing"


def _towers(placement: Placement, device: Device) -> list[str]:
    towers = [tower for tower in analyze(placement).towers if device in tower.devices]
    return [
        f"the tower on {tower}, which reads {plural(len(tower.reads), 'variable')}"
        for tower in towers
    ]


def _variables(placement: Placement, there: Sequence[Op]) -> list[str]:
    here = {op.name for op in there}
    held = [variable for variable in placement.variables if variable.name in here]
    size = sum(Tensor(variable.dtype, variable.shape).bytes or 0 for variable in held)
    names = listed([variable.name for variable in held], _MOST_NAMED)
    return [f"{len(held)}, {plural(size, 'byte')}: {names}"] if held else []


def _ops_elsewhere(requesting: Sequence[Op], device: Device) -> list[str]:
    """The ops that request a device but are on another, by that device and the reason."""
    ops: dict[tuple[str, str], list[str]] = defaultdict(list)
    for op in requesting:
        if op.assigned and not op.assigned.matches(device):
            ops[op.assigned.short, op.fallback_reason].append(op.name)
    return [
        names[0]
        + (f" and {plural(len(names) - 1, 'other op')}" if len(names) > 1 else "")
        + f" to {where}"
        + (f": {reason}" if reason else "")
        for (where, reason), names in ops.items()
    ]


_STYLES = {"-": "red", "+": "green"}


def write_rule(explanation: str, example: Sequence[str], console: Console) -> None:
    """Prints the explanation of a rule, and the diff from a broken program to a fixed one."""
    lines = explanation.splitlines()
    if example:
        title = "A program that breaks the rule (-), and its fix (+); tf1 is tf.compat.v1:"
        lines += ["", title, ""]
    for line in lines:
        print_line(console, Text(line))
    for line in example:
        print_line(console, Text(line, _STYLES.get(line[:1], "")))
