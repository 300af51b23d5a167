"""Find the source line to edit, if it is not the innermost line of an op.

`frames_up_to` finds a misplaced call of a correct helper. `LoopLines` finds the line in the loop
over towers if the same lines build all towers; `variable_line` finds the line that gives a tower
its own variable. `joining_ops` finds the ops that combine the towers' gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import made_by_get_variable
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import PASSES_READ, VARIABLES
from placement_checks.core.placement import Frame, Placement


def frames_up_to(placement: Placement, op: str, other: str) -> tuple[str, ...]:
    """Return the source lines of an op, down to the last function that also built ``other``.

    For example, a program calls a helper that clips gradients in each tower. The helper is
    correct, but its call is misplaced: the line to edit is in the function that computes the
    gradients (``other``) and calls the helper. If no function built both ops, the result is all
    lines of the op.
    """
    frames, others = placement.details.frames(op), placement.details.frames(other)
    depth = 0
    while depth < min(len(frames), len(others)) and frames[depth] == others[depth]:
        depth += 1
    if others and depth == len(others):
        frames = frames[:depth]
    elif others and depth < len(frames):
        frame, other_frame = frames[depth], others[depth]
        if (frame.file, frame.function) == (other_frame.file, other_frame.function):
            frames = frames[: depth + 1]
    return unique_lines(frames)


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


class LoopLines:
    """The source lines of the functions that build several towers.

    TensorFlow does not record the line of a loop, a name scope or a variable scope. A function
    that is called once per tower builds ops of one tower. The loop over towers is in an outer
    function, which also builds the ops that combine the towers.
    """

    def __init__(self, placement: Placement, shared: Iterable[str] = ()) -> None:
        """
        Args:
            placement: the program.
            shared: further ops that are built once for all towers, such as shared variables.
        """
        self._placement = placement
        self._shared = shared

    @cached_property
    def _calls(self) -> set[tuple[Frame, ...]]:
        """The outer frames of ops that are built once for all towers."""
        shared = [*self._shared, *_ops_across_towers(analyze(self._placement))]
        return {
            tuple(frames[:depth])
            for frames in map(self._placement.details.frames, shared)
            for depth in range(len(frames))
        }

    def line(self, op: str) -> str | None:
        """Return the innermost source line of an op in a function that builds several towers.

        If no such function is known, the result is the innermost line of all; None if there is no
        line.
        """
        frames = tuple(self._placement.details.frames(op))
        depths = [depth for depth in range(len(frames)) if frames[:depth] in self._calls]
        return str(frames[max(depths, default=-1)]) if frames else None


def loop_lines_of_variables(placement: Placement, apart: Collection[str]) -> LoopLines:
    """Return the source lines around ``apart``, variables that towers do not share.

    A function that also creates shared variables is not the cause: the scopes around its call are
    right.
    """
    towers = analyze(placement).towers
    shared = (
        variable.name
        for variable in placement.variables
        if variable.name not in apart and sum(variable.name in tower.reads for tower in towers) > 1
    )
    return LoopLines(placement, shared)


def variable_line(placement: Placement, lines: LoopLines, variable: str) -> str | None:
    """Return the line to edit so that towers share a variable; None if it is unknown.

    If `tf.Variable` created the variable, this is its call, because no scope makes such a
    variable shared. Otherwise it is the line in the loop over towers.
    """
    if made_by_tf_variable(placement, variable):
        return placement.where(variable)
    return lines.line(variable)


def made_by_tf_variable(placement: Placement, variable: str) -> bool:
    """Return whether tf.Variable created a variable instead of get_variable."""
    return variable not in placement.cached(made_by_get_variable)


def _ops_across_towers(analysis: TowerAnalysis) -> list[str]:
    """Return the names of ops that combine values of several towers.

    Ops that request no tower's GPU are preferred. If no op combines towers, for example in towers
    that share nothing, the result is the inputs that several towers read, except variables.
    """
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
