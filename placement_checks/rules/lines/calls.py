"""The line of a call, where not what was called is wrong but that it was called there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from placement_checks.core.placement import Frame, Placement


def frames_beside(placement: Placement, op: str, other: str) -> tuple[str, ...]:
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
