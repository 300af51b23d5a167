"""Find the source line that the user must edit.

`blame` is the one answer: a rule names the ops at fault, and the ops that are right. The other
functions find such ops: `built_once` and `joining_ops` find the ops that combine the towers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from placement_checks.core.user_code import is_of_other_repository
from placement_checks.rules.assignments import COMPREHENSIONS, assigned_at, given_at, passed_at

_MOST_OPS = 1_000  # of each kind, in a comparison of stacks


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


def blame_argument(frames: Sequence[Frame], name: str) -> tuple[str, ...]:
    """Return source lines, down to the line that gives an argument its value, such as a seed."""
    return unique_lines(given_at(_without_library(frames), name))


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


def library_line(placement: Placement, op: str) -> str | None:
    """Return the line of a library in another repository that built an op; None if none did."""
    frames = placement.details.frames(op)
    is_of_library = len(_without_library(frames)) < len(frames)
    return str(frames[-1]) if is_of_library else None


def lines_to(placement: Placement, op: str, line: str | None) -> tuple[str, ...]:
    """Return the source lines that an op was built through, down to a line that is known.

    The result is empty if ``line`` is None, and only this line if the op was not built through it.
    """
    frames = blame(placement, (op,))
    if line is None:
        return ()
    return frames[: frames.index(line) + 1] if line in frames else (line,)


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

    No scope makes such a variable shared, so the line to edit is the call of tf.Variable.
    """
    return variable not in placement.cached(made_by_get_variable)


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
