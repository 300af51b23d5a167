"""The line of a call, where not what was called is wrong but that it was called there.

The ops that bring the towers' gradients together.

The line at which towers differ, where all of them are built by the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.op_types import PASSES_READ, VARIABLES
from placement_checks.core.placement import Frame, Placement


def frames_up_to(placement: Placement, op: str, other: str) -> tuple[str, ...]:
    """The user's lines that built an op, down to the one in a function that built the other, too.

    A helper that clips gradients is right, and its call for each tower is not: the line to edit is
    in the function that computes the gradients and calls the helper. All lines of the op where no
    function has built both.
    """
    frames, others = placement.details.frames(op), placement.details.frames(other)
    same = 0
    while same < min(len(frames), len(others)) and frames[same] == others[same]:
        same += 1
    if not others or same == len(frames):
        return _texts(frames)
    if same == len(others):
        return _texts(frames[:same])
    mine, its = frames[same], others[same]
    is_one_function = (mine.file, mine.function) == (its.file, its.function)
    return _texts(frames[: same + 1] if is_one_function else frames)


def _texts(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Each line once, as a finding has them."""
    return tuple(line for line, _ in groupby(map(str, frames)))


def joining_ops(placement: Placement, updates: Iterable[Update]) -> Iterator[int]:
    """The ops on the way to updates that first take the gradients of more than one tower."""
    analysis, gradients = analyse(placement), gradient_flow(placement)
    between = {op for update in updates for op in gradients.ancestors(update)}
    for op in sorted(between):
        taken = [
            gradients.gradient_towers[gradient] & analysis.all_towers
            for gradient in gradients.gradient_inputs(op)
        ]
        towers = 0
        for bits in taken:
            towers |= bits
        if towers and towers not in taken:
            yield op


_MOST_JOINED = 200  # ops whose lines are read: the first ones average, the others come after


class LoopLines:
    """The lines of the function that loops over towers, from which their ops are built.

    TensorFlow keeps no line of a name scope or a variable scope, nor of a loop. But a function
    that is called once per tower builds what is of one tower alone; the towers differ further
    out, in a function that also builds what joins them.
    """

    def __init__(self, placement: Placement, shared: Iterable[str] = ()) -> None:
        """
        Args:
            placement: the program.
            shared: ops, beside those that join towers, in whose functions towers do not differ.
        """
        self._frames = placement.details.frames
        together = [*shared, *_joined(analyse(placement))]
        self._calls = {
            tuple(frames[:depth])
            for frames in map(self._frames, together)
            for depth in range(len(frames))
        }

    def line(self, op: str) -> str | None:
        """The innermost line of an op's in a function that builds for all towers.

        The innermost of all where no function is known to; None where the op has no lines.
        """
        frames = tuple(self._frames(op))
        depths = [depth for depth in range(len(frames)) if frames[:depth] in self._calls]
        return str(frames[max(depths, default=-1)]) if frames else None


def _joined(analysis: TowerAnalysis) -> list[str]:
    """Ops of no tower that compute with several; those asked to be elsewhere if there are any.

    Where nothing joins towers, as of such that share nothing: what all of them are given.
    """
    joined = [
        op
        for op, towers in enumerate(analysis.towers_behind)
        if (towers & analysis.all_towers).bit_count() > 1 and not analysis.own_towers[op]
    ]
    elsewhere = [op for op in joined if analysis.tower_of[op] < 0]
    found = elsewhere or joined or _given(analysis)
    return [analysis.flow.names[op] for op in found[:_MOST_JOINED]]


def _given(analysis: TowerAnalysis) -> list[int]:
    """The ops of no tower, variables apart, that several towers read."""
    flow, tower_of = analysis.flow, analysis.tower_of
    return [
        op
        for op, consumers in enumerate(flow.consumers)
        if tower_of[op] < 0
        and not (flow.types[op] in VARIABLES or flow.types[op] in PASSES_READ)
        and len({tower_of[consumer] for consumer in consumers} - {-1}) > 1
    ]
