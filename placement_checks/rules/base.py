"""What a rule is."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from itertools import groupby
from typing import ClassVar

from placement_checks.analysis.tower_analysis import wiring
from placement_checks.core.placement import Op, Placement
from placement_checks.core.results import Evidence, Finding, State, Verdict

_SHOWN = 4  # steps of a path at each end


@dataclass(frozen=True)
class Rule:
    """Base of the rules. The fields of a rule are its parameters, its docstring explains it.

    Attributes:
        by_absence: whether it is broken by what is not there, so that a part proves nothing.
    """

    name: ClassVar[str]
    evidence: ClassVar[Evidence]
    by_absence: ClassVar[bool] = False

    def check(self, placement: Placement) -> Verdict:
        """Judge a placement."""
        raise NotImplementedError

    @classmethod
    def explanation(cls) -> str:
        """The docstring, and each parameter with its default."""
        lines = [inspect.cleandoc(cls.__doc__ or "")]
        parameters = [f"  {cls.name}.{each.name} = {each.default!r}" for each in fields(cls)]
        if parameters:
            lines += ["", "Parameters and their defaults:", *parameters]
        return "\n".join(lines)

    def verdict(self, findings: Sequence[Finding], note: str | None = None) -> Verdict:
        """Broken if there is a finding, else kept."""
        state: State = "broken" if findings else "kept"
        return Verdict(self.name, state, self.evidence, None, findings, note)

    def not_checked(self, reason: str, note: str | None = None, *, alone: bool = False) -> Verdict:
        return Verdict(self.name, "not-checked", None, reason, note=note, alone=alone)

    def unplaced(self, placement: Placement) -> Verdict | None:
        """The verdict on a placement that no placer has answered for."""
        if placement.unplaced or placement.placer is None:
            return self.not_checked(placement.unplaced or "no placer was asked")
        return None

    def unasked(self, placement: Placement) -> Verdict | None:
        """The verdict on a placement of which only the assigned devices are known."""
        return self.not_checked(placement.unasked) if placement.unasked else None

    def collapsed(self, placement: Placement) -> Verdict | None:
        """The verdict on a log of a machine without GPUs, where all devices became one."""
        if placement.placer != "log" or (placement.machine and placement.machine.gpus):
            return None
        return self.not_checked(
            "the log comes from a machine without GPUs, on which every op is on a CPU whatever it "
            "asks for; verify the program itself, on GPUs that need not exist"
        )

    def too_few_towers(self, placement: Placement) -> Verdict | None:
        """The verdict on a program that has not two towers, or whose towers look like one."""
        if unasked := self.unasked(placement):
            return unasked
        if not placement.variables:
            return self.not_checked("the graph has no variables")
        towers = wiring(placement).towers
        if len(towers) > 1:
            return None
        if not towers:
            return self.not_checked(
                "no op that is asked for on a GPU reads a variable, so there are no towers; build "
                "each under its own tf.device('/gpu:0'), tf.device('/gpu:1') …"
            )
        losses = len(set(placement.training.objectives or placement.training.losses))
        if losses > 1:
            return self.not_checked(
                f"the towers cannot be told apart: there are {losses} losses, and all ops that "
                f"read variables on a GPU are asked for on {towers[0]}"
            )
        return self.not_checked(f"there is one tower, on {towers[0]}", alone=True)

    def blended(self, placement: Placement) -> Verdict | None:
        """The verdict where the gradients of one tower are also those of another."""
        known = wiring(placement)
        if not known.blended:
            return None
        tower = known.towers[known.blended[0].tower]
        return self.not_checked(
            f"the loss of the tower on {tower} contains another tower's; mend losses-apart first"
        )


def is_among(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is among those, or the patterns such as tower_*/bn/*, that a field lists."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def steps(placement: Placement, ops: Sequence[int]) -> tuple[str, ...]:
    """A path for a finding: each op with its type and source line; of a long one both ends."""
    flow = wiring(placement).flow
    shown = [
        " ".join(
            filter(None, (f"{flow.names[op]} ({flow.types[op]})", placement.where(flow.names[op])))
        )
        for op in (ops if len(ops) <= 2 * _SHOWN else (*ops[:_SHOWN], *ops[-_SHOWN:]))
    ]
    if len(ops) > 2 * _SHOWN:
        shown.insert(_SHOWN, f"… {len(ops) - 2 * _SHOWN} more")
    return tuple(shown)


def built_at(placement: Placement, op: str) -> str:
    """`` (built at a.py:1 > :7 > b.py:2)``, where more lines than that of ``where`` had a part."""
    frames = [next(same) for _, same in groupby(placement.details.frames(op), key=str)]
    if len(frames) < 2:
        return ""
    files = [None, *(frame.file for frame in frames)]
    steps = (
        f":{frame.line}" if frame.file == before else str(frame)
        for before, frame in zip(files, frames, strict=False)
    )
    return f" (built at {' > '.join(steps)})"


def asked_for(op: Op) -> str:
    """What an op requested, in words."""
    return op.requested.short if op.requested else "no device"
