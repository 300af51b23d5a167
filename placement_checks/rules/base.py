"""What a rule is.

Code that more than one rule tells the user to write.

The source lines of findings: which of the user's lines the reader has to look at.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import ClassVar

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing, NotApplicable
from placement_checks.core.placement import Frame, Op, Placement
from placement_checks.core.results import Finding, Kind, State, Verdict
from placement_checks.rules.requirements import Need

AVERAGE = (
    "[(tf.add_n([grad for grad, _ in pairs]) / num_gpus, pairs[0][1]) "
    "for pairs in zip(*tower_grads)]"
)
REUSE = "with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), reuse=i > 0):"
# Under a strategy, in the function that each replica runs.
ADD_UP = (
    "add up the gradients of all replicas first, as optimizer.apply_gradients does, or "
    "tf.distribute.get_replica_context().all_reduce('SUM', gradients)"
)


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


_SHOWN = 4  # steps of a path at each end


@dataclass(frozen=True)
class Rule(ABC):
    """Base of the rules. The fields of a rule are its parameters, its docstring explains it.

    Attributes:
        name: its name in reports and settings.
        kind: the kind of evidence that it rests on.
        requires: the evidence without which it is not checked.
        explained_by: the rules whose finding on an object explains one of this rule on it.
        by_absence: whether what is missing breaks it, so that part of a program proves nothing.
        impact: what a breach means for the program, for a rule of another distribution. The
            impact of a rule of this package is in `rules.registry`.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    requires: ClassVar[frozenset[Need]] = frozenset()
    explained_by: ClassVar[tuple[str, ...]] = ()
    by_absence: ClassVar[bool] = False
    impact: ClassVar[Impact] = Impact.LAYOUT

    def judge(self, program: Evidence | Placement) -> Verdict:
        """The verdict on a program: not-checked where something that it requires is missing."""
        evidence = Evidence.of(program)
        for need in Need:
            if need in self.requires and (missing := need.missing(evidence)) is not None:
                return self.without(missing)
        verdict = self.check(evidence)
        findings = [
            finding if finding.frames or finding.known else located(finding, evidence.placement)
            for finding in verdict.findings
        ]
        return replace(verdict, findings=findings) if findings else verdict

    @abstractmethod
    def check(self, evidence: Evidence) -> Verdict:
        """Judge a program that has all that the rule requires."""

    @classmethod
    def explanation(cls) -> str:
        """The docstring, and each parameter with its default."""
        lines = [inspect.cleandoc(cls.__doc__ or "")]
        parameters = [
            f"  {cls.name}.{parameter.name} = {parameter.default!r}" for parameter in fields(cls)
        ]
        if parameters:
            lines += ["", "Parameters and their defaults:", *parameters]
        return "\n".join(lines)

    def verdict(self, findings: Sequence[Finding], note: str | None = None) -> Verdict:
        """Broken if there is a finding, else kept."""
        state: State = "broken" if findings else "kept"
        return Verdict(self.name, state, self.kind, None, findings, note)

    def without(self, missing: Missing) -> Verdict:
        """The verdict where something is missing that the rule needs."""
        return self.not_checked(str(missing), one_tower=isinstance(missing, NotApplicable))

    def not_checked(
        self, reason: str, note: str | None = None, *, one_tower: bool = False
    ) -> Verdict:
        return Verdict(self.name, "not-checked", None, reason, note=note, one_tower=one_tower)


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether a field lists a name, itself or by a pattern such as tower_*/bn/*."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_allowed(op: Op, allow: Collection[str]) -> bool:
    """Whether a field lists an op, by its type, its name or a pattern of names."""
    return op.type in allow or matches_any(op.name, allow)


def path_lines(placement: Placement, ops: Sequence[int]) -> tuple[str, ...]:
    """The path of a finding: every op with its type and source line; of a long one both ends."""
    flow = analyse(placement).flow
    shown = [
        " ".join(
            filter(None, (f"{flow.names[op]} ({flow.types[op]})", placement.where(flow.names[op])))
        )
        for op in (ops if len(ops) <= 2 * _SHOWN else (*ops[:_SHOWN], *ops[-_SHOWN:]))
    ]
    if len(ops) > 2 * _SHOWN:
        shown.insert(_SHOWN, f"… {len(ops) - 2 * _SHOWN} more")
    return tuple(shown)


def requested_device(op: Op) -> str:
    """The device that an op requests, as text."""
    return op.requested.short if op.requested else "no device"
