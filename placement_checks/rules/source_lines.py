"""Find the source line that the user must edit.

`blame` is the one answer: a rule names the ops at fault, and the ops that are right. The other
functions find such ops: `built_once` and `joining_ops` find the ops that combine the towers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import made_by_get_variable
from placement_checks.core.frames import Frame
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import PASSES_READ, VARIABLES
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding
from placement_checks.core.user_code import is_of_other_repository
from placement_checks.rules.assignments import (
    COMPREHENSIONS,
    assigned_at,
    awaited_at,
    calls,
    fed_at,
    given_at,
    mentioned_at,
    other_branch_of,
    passed_at,
)

_MOST_OPS = 1_000  # of each kind, in a comparison of stacks


def locate(findings: Sequence[Finding], placement: Placement) -> list[Finding]:
    """Return the findings of a rule with their source lines and lines of devices.

    If the device of several ops is wrong, the line to edit is the ``with tf.device(…)`` that they
    share, unless it also decides the device of an op that is right. An op of a library without
    such a line gets the line of a similar op. Findings on the known behavior of a library have no
    lines.
    """
    found = [each if each.known else _located(each, placement) for each in findings]
    scopes = {_request(each, placement): each.device_line for each in found if each.device_line}
    found = [
        replace(each, device_line=scopes.get(_request(each, placement)))
        if each.placed and not each.device_line
        else each
        for each in found
    ]
    built_at: dict[Hashable, set[str | None]] = defaultdict(set)
    for each in found:
        built_at[each.group].add(each.built_at)
    of_right_ops = {each.group for each in found if each.is_of_scope is False}
    return [
        replace(
            each,
            is_of_scope=each.group not in of_right_ops
            and (not each.op or len(built_at[each.group]) > 1),
        )
        if each.device_line and each.is_of_scope is None
        else each
        for each in found
    ]


def _request(finding: Finding, placement: Placement) -> Hashable:
    """Return the device that the misplaced op of a finding requests, and the group of it."""
    op = placement.ops.get(finding.placed or "")
    return finding.group_key, finding.fix, (op and op.requested) or finding.object


def _located(finding: Finding, placement: Placement) -> Finding:
    frames = (
        finding.frames
        or blame(placement, finding.ops or (finding.object,), finding.against)
        or blame(placement, (finding.object,), finding.against)
    )
    stack = placement.details.frames((*finding.ops, finding.object)[0])
    is_of_library = len(_without_library(stack)) < len(stack)
    line = None if finding.placed is None else device_line(placement, finding.placed)
    decides_right_ops = (
        line
        and not line.function
        and any(device_line(placement, each) == line for each in finding.against)
    )
    return replace(
        finding,
        frames=frames,
        library_line=str(stack[-1]) if is_of_library else None,
        device_line=None if line is None else str(line),
        is_of_scope=False if decides_right_ops else finding.is_of_scope and line is not None,
    )


def device_line(placement: Placement, name: str) -> Frame | None:
    """Return the line that decided which device an op requests; None if it is unknown.

    For a colocated op without such a line, the result is the line of the op that it follows.
    """
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        if (line := placement.details.device_line(name)) is not None:
            return line
        op = placement.ops.get(name)
        name = next(iter(op.colocated), name) if op else name
    return None


def blame(
    placement: Placement, ops: Sequence[str], against: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the source lines that ops were built through, down to the line to edit.

    The line to edit is the last one that separates the ops at fault from the ops that are right:
    the line of the innermost function that built both. For example, a program calls a helper that
    clips gradients in each tower. The helper is correct, but its call is misplaced: the line to
    edit is in the function that computes the gradients and calls the helper.

    If no function built an op of ``against``, the line separates the first op from the others of
    ``ops``. All ops share the outer frames, such as a call of ``main``, so these do not identify
    any op. A single op is identified by its innermost line.

    The user cannot edit a library. If the line is in a file of another repository, such as a clone
    of a library, the line to edit is the user's call of the library.

    Args:
        placement: the program.
        ops: the names of the ops at fault. Ops without frames, which only a library created, are
            ignored.
        against: the names of ops that are right.

    Returns:
        The source lines, the outermost first; empty if no line of ``ops`` is known.
    """
    return unique_lines(_blamed(placement, ops, against))


def blame_selection(
    placement: Placement, ops: Sequence[str], against: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the lines as `blame` does, down to the slice or list that selects the ops' inputs.

    Use it if a tower is missing or counts twice. The line that `blame` finds often only uses a
    list that a plain assignment of Python has made, which builds no op.
    """
    frames = list(_blamed(placement, ops, against))
    for last in frames[-1:]:
        if (assigned := assigned_at(last)) != last:
            while len(frames) > 1 and frames[-1].function in COMPREHENSIONS:
                frames.pop()
            frames[-1] = assigned
    return unique_lines(frames)


def blame_branch(placement: Placement, op: str) -> tuple[str, ...]:
    """Return the lines of an op that is right, down to the branch that its line is not in.

    Use it for ops that do not exist, because the program takes the other branch of an ``if``.
    """
    frames = _blamed(placement, [op], ())
    return unique_lines([*frames[:-1], *map(other_branch_of, frames[-1:])])


def blame_argument(frames: Sequence[Frame], name: str) -> tuple[str, ...]:
    """Return source lines, down to the line that gives an argument its value, such as a seed."""
    return unique_lines(given_at(_without_library(frames), name))


def blame_setting(placement: Placement, *settings: str) -> tuple[str, ...]:
    """Return the lines down to the only line of the program that mentions a setting of its GPUs.

    If there is none, it is the line that creates the configuration of the session; the result is
    empty if this is unknown, too.
    """
    frames = _without_library(next(filter(None, map(placement.details.frames, placement.ops)), ()))
    found = (mentioned_at(frames, each) for each in (*settings, "ConfigProto"))
    return unique_lines(next(filter(None, found), ()))


def _blamed(placement: Placement, ops: Sequence[str], against: Iterable[str]) -> Sequence[Frame]:
    first, *others = _stacks(placement, ops) or [()]
    depth = placement.cached(_CallsOf(tuple(against))).depth_of_parting(first)
    if not depth:
        depths = (_Calls([each]).depth_of_parting(first) or len(first) for each in others)
        depth = min(depths, default=len(first))
    while depth < len(first) and first[depth].function in COMPREHENSIONS:
        depth += 1
    return _without_library(first[:depth])


def _without_library(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return frames down to the user's line that calls a library in another repository."""
    # Code outside of files, such as `python -c "import train; train.run()"`, may call the program.
    program = next((each.file for each in frames if not each.file.startswith("<")), "")
    for depth, frame in enumerate(frames):
        if is_of_other_repository(frame.file, program):
            return frames[:depth]
    return frames


def _stacks(placement: Placement, ops: Iterable[str]) -> list[tuple[Frame, ...]]:
    """Return the distinct stacks of the first ops."""
    stacks = (tuple(placement.details.frames(op)) for op in islice(ops, _MOST_OPS))
    return list(dict.fromkeys(stack for stack in stacks if stack))


class _Calls:
    """The calls in some stacks."""

    def __init__(self, stacks: Collection[tuple[Frame, ...]]) -> None:
        self._ends = set(stacks)
        self._callers = {stack[:depth] for stack in stacks for depth in range(1, len(stack))}
        self._functions = {(stack[0].file, stack[0].function) for stack in stacks}

    def depth_of_parting(self, stack: tuple[Frame, ...]) -> int:
        """Return the depth of the frame at which a stack leaves the closest one of these stacks.

        This is the first frame that differs; the last common frame if the other stack ends there;
        and 0 if no function built both.
        """
        for depth in range(len(stack), 0, -1):
            if stack[:depth] in self._callers:
                return min(depth + 1, len(stack))
            if stack[:depth] in self._ends:
                return depth
        return int(any((each.file, each.function) in self._functions for each in stack[:1]))


@dataclass(frozen=True)
class _CallsOf:
    """A key of `Placement.cached`: many findings name the same ops as right."""

    ops: tuple[str, ...]

    def __call__(self, placement: Placement) -> _Calls:
        return _Calls(_stacks(placement, self.ops))


def blame_rows(placement: Placement, op: str) -> tuple[str, ...]:
    """Return the lines of an input, down to the line that makes the rows for a traced step."""
    frames = _without_library(placement.details.frames(op))
    return unique_lines(fed_at(frames) if placement.step.traced else frames)


def blame_wait(placement: Placement, op: str) -> tuple[str, ...]:
    """Return the lines of an op, down to the line that chooses the ops that it waits for."""
    return unique_lines(awaited_at(_without_library(placement.details.frames(op))))


def blame_creation(
    placement: Placement, variable: str, *, differs: bool = False
) -> tuple[str, ...]:
    """Return the lines of a variable, down to the line that creates the object with it.

    This is the call of a class, such as a model, whose ``__init__`` creates the variable. If the
    variable differs between towers, it is the line that decides the arguments of this call.
    """
    frames = placement.details.frames(variable)
    depths = [depth for depth, each in enumerate(frames) if each.function == "__init__"]
    frames = _without_library(frames[: depths[-1] if any(depths) else None])
    return unique_lines(passed_at(frames) if differs else frames)


def unique_lines(frames: Sequence[Frame | str]) -> tuple[str, ...]:
    """Return the frames as text, without consecutive duplicates."""
    return tuple(line for line, _ in groupby(map(str, frames)))


def joining_ops(placement: Placement, updates: Iterable[Update]) -> Iterator[OpId]:
    """Yield the first ops on the way to updates that depend on gradients of several towers."""
    analysis, gradients = analyze(placement), gradient_flow(placement)
    between = {op for update in updates for op in gradients.ancestors(update)}
    for op in sorted(between):
        of_inputs = {
            gradients.gradient_towers[gradient] & analysis.all_towers
            for gradient in gradients.gradient_inputs(op)
        }
        if union(of_inputs) not in of_inputs | {0}:
            yield op


_MOST_JOINING = 200  # later ops use the averages that the first ops compute


def shared_variables(placement: Placement, apart: Collection[str]) -> list[str]:
    """Return the ops that are right if towers do not share the variables of ``apart``.

    These are the variables that they share, and `built_once`. A function that also creates shared
    variables is not the cause: the scopes around its call are right.
    """
    towers = analyze(placement).towers
    shared = [
        variable.name
        for variable in placement.variables
        if variable.name not in apart and sum(variable.name in tower.reads for tower in towers) > 1
    ]
    return [*shared, *built_once(placement)]


def made_by_tf_variable(placement: Placement, variable: str) -> bool:
    """Return whether tf.Variable created a variable instead of get_variable.

    No scope makes such a variable shared, so the line to edit is the call of tf.Variable. If
    get_variable gets a tensor as the initial value, only the source tells.
    """
    frames = placement.details.frames(variable)[-1:]
    return variable not in placement.cached(made_by_get_variable) and not any(
        calls(each, "get_variable") for each in frames
    )


def built_once(placement: Placement) -> Sequence[str]:
    """Return the names of ops that are built once, in the function with the loop over towers.

    TensorFlow does not record the line of a loop, a name scope or a variable scope. A function
    that is called once per tower builds ops of one tower. The loop over towers is in an outer
    function, which also builds the ops that combine the towers.

    Ops that request no tower's GPU are preferred. If no op combines towers, for example in towers
    that share nothing, the result is the inputs that several towers read, except variables.
    """
    return placement.cached(_built_once)


def _built_once(placement: Placement) -> Sequence[str]:
    analysis = analyze(placement)
    flow, tower_of = analysis.flow, analysis.tower_of
    joining = [
        op
        for op, towers in zip(analysis.flow.ops, analysis.towers_behind, strict=True)
        if (towers & analysis.all_towers).bit_count() > 1 and not analysis.own_towers[op]
    ]
    ops = [op for op in joining if tower_of[op] is None] or joining
    if not ops:
        no_input = VARIABLES | PASSES_READ
        ops = [
            op
            for op, consumers in zip(flow.ops, flow.consumers, strict=True)
            if tower_of[op] is None
            and flow.types[op] not in no_input
            and len({tower_of[consumer] for consumer in consumers} - {None}) > 1
        ]
    return [flow.names[op] for op in ops[:_MOST_JOINING]]
