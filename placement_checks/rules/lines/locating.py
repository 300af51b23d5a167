"""The source lines of findings: which of the user's lines the reader has to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from placement_checks.core.placement import Frame, Placement
from placement_checks.core.results import Finding

_MOST_OPS = 1_000  # of a finding, whose lines are compared


def located(finding: Finding, placement: Placement) -> Finding:
    """The finding with the line at which its ops part, and the one that decided its device."""
    ops = finding.ops or (finding.object,)
    frames_of = placement.details.frames
    frames = _parted([frames_of(op) for op in ops[:_MOST_OPS]]) or frames_of(finding.object)
    if finding.at is not None and finding.at not in map(str, frames):
        frames = frames_of(ops[0])
    return replace(
        finding,
        frames=tuple(str(next(same)) for _, same in groupby(frames, key=str)),
        device_line=None if finding.placed is None else device_line(placement, finding.placed),
    )


def _parted(stacks: Sequence[Sequence[Frame]]) -> Sequence[Frame]:
    """The lines of the first op, the outermost first, down to the one that is its own.

    A line that all ops were built through, such as a call of ``main``, leads to none of them, so
    the last line is the one at which the ops part. If they do not part, it is the innermost that
    all of them have; if no function built all of them, the innermost of the first op. Ops without
    a line, which a library made alone, are left out.
    """
    known = [stack for stack in stacks if stack]
    if not known:
        return ()
    for depth, frames in enumerate(zip(*known, strict=False)):
        if len(set(frames)) > 1:
            functions = {(frame.file, frame.function) for frame in frames}
            return known[0][: depth + 1] if depth or len(functions) == 1 else known[0]
    return min(known, key=len)


def device_line(placement: Placement, name: str) -> str | None:
    """What decided the device that an op asks for; for one that goes with another, the other's."""
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        if (line := placement.details.device_line(name)) is not None:
            return str(line)
        op = placement.ops.get(name)
        name = next(iter(op.colocated), name) if op else name
    return None
