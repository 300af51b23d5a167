"""The source lines of findings: which of the user's lines the reader has to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from placement_checks.core.placement import Frame, Placement
from placement_checks.core.results import Finding

_MOST_OPS = 1_000  # of a finding, whose lines are compared


def located(finding: Finding, placement: Placement) -> Finding:
    """The finding with the line that all of its ops share, and the one that decided its device."""
    ops = finding.ops or (finding.object,)
    frames_of = placement.details.frames
    frames = _shared([frames_of(op) for op in ops[:_MOST_OPS]]) or frames_of(finding.object)
    if finding.at is not None and finding.at not in map(str, frames):
        frames = frames_of(ops[0])
    return replace(
        finding,
        frames=tuple(str(next(same)) for _, same in groupby(frames, key=str)),
        device_line=None if finding.placed is None else device_line(placement, finding.placed),
    )


def _shared(stacks: Sequence[Sequence[Frame]]) -> Sequence[Frame]:
    """The lines that all ops were built through, the outermost first.

    Those of the first op where they have none in common; ops of which no line is known, as a
    library made them alone, are left out.
    """
    known = [stack for stack in stacks if stack]
    if not known:
        return ()
    shared = []
    for same in zip(*known, strict=False):
        if len(set(same)) > 1:
            break
        shared.append(same[0])
    return shared or known[0]


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
