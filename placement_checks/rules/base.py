"""The base class of rules, and helpers that most rules share.

`Rule.judge` checks the required evidence, calls `Rule.check` and adds source lines to findings.
Constants such as `AVERAGE` are code that the fixes of several rules recommend.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import ClassVar

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
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
# For programs with a strategy, in the function that runs in each replica.
ADD_UP = (
    "add up the gradients of all replicas first, as optimizer.apply_gradients does, or "
    "tf.distribute.get_replica_context().all_reduce('SUM', gradients)"
)
_MOST_OPS = 1_000  # ops whose source lines a finding compares
_PATH_ENDS = 4  # ops at each end of a long path


@dataclass(frozen=True)
class Rule(ABC):
    """Base class of the rules. The fields of a rule are its parameters; its docstring explains it.

    Attributes:
        name: its name in reports and settings.
        kind: the kind of evidence that its findings rest on.
        requires: the evidence that it needs; without it the verdict is not-checked.
        explained_by: the names of rules whose findings on the same object explain findings of this
            rule.
        by_absence: whether something that is missing from the program can break it. A verdict on a
            part of a program then proves nothing.
        declared_with: the name of a rule whose declared fields apply to this rule too, if it has
            fields of the same names.
        impact: the effect of a finding on the program, for a rule of another distribution. The
            impact of a rule of this package is in `rules.registry`.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    requires: ClassVar[frozenset[Need]] = frozenset()
    explained_by: ClassVar[tuple[str, ...]] = ()
    by_absence: ClassVar[bool] = False
    declared_with: ClassVar[str] = ""
    impact: ClassVar[Impact] = Impact.LAYOUT

    def judge(self, program: Evidence | Placement) -> Verdict:
        """Return the verdict on a program: not-checked if a required part is missing."""
        evidence = Evidence.of(program)
        for need in Need:
            if need in self.requires and (missing := need.missing(evidence)) is not None:
                return self.without(missing)
        verdict = self.check(evidence)
        findings = [
            finding if finding.frames or finding.known else locate(finding, evidence.placement)
            for finding in verdict.findings
        ]
        return replace(verdict, findings=findings) if findings else verdict

    @abstractmethod
    def check(self, evidence: Evidence) -> Verdict:
        """Judge a program that has everything that the rule requires."""

    @classmethod
    def explanation(cls) -> str:
        """Return the docstring, and each parameter with its default."""
        lines = [inspect.cleandoc(cls.__doc__ or "")]
        parameters = [
            f"  {cls.name}.{parameter.name} = {parameter.default!r}" for parameter in fields(cls)
        ]
        if parameters:
            lines += ["", "Parameters and their defaults:", *parameters]
        return "\n".join(lines)

    def verdict(self, findings: Sequence[Finding], note: str | None = None) -> Verdict:
        """Return a broken verdict if there are findings, else a kept one."""
        state: State = "broken" if findings else "kept"
        return Verdict(self.name, state, self.kind, None, findings, note)

    def without(self, missing: Missing) -> Verdict:
        """Return a not-checked verdict for a part of the evidence that is missing."""
        return self.not_checked(str(missing), one_tower=isinstance(missing, NotApplicable))

    def not_checked(
        self, reason: str, note: str | None = None, *, one_tower: bool = False
    ) -> Verdict:
        """Return a not-checked verdict with its reason."""
        return Verdict(self.name, "not-checked", None, reason, note=note, one_tower=one_tower)


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name is in ``patterns``, or matches a pattern such as tower_*/bn/*."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_allowed(op: Op, allow: Collection[str]) -> bool:
    """Return whether ``allow`` lists an op: its type, its name or a pattern of names."""
    return op.type in allow or matches_any(op.name, allow)


def device_names(declared: str | Collection[str]) -> tuple[str, ...]:
    """Return the device names in a field, which is one name or several."""
    return (declared,) if isinstance(declared, str) else tuple(declared)


def devices_text(names: Iterable[str]) -> str:
    """Return ``/device:CPU:0 or /job:ps`` for the names of devices."""
    return " or ".join(str(Device.parse(name)) for name in names)


def is_on(device: Device, names: Iterable[str]) -> bool:
    """Return whether a device matches a name, such as /cpu:0, or one of several."""
    return any(device.matches(Device.parse(name)) for name in names)


def requested_device(op: Op) -> str:
    """Return the device that an op requests, as text."""
    return op.requested.short if op.requested else "no device"


def path_lines(placement: Placement, ops: Sequence[int]) -> tuple[str, ...]:
    """Return a line for each op of a path: its name, type and source line.

    The middle of a long path is left out.
    """
    flow = analyze(placement).flow
    hidden = len(ops) - 2 * _PATH_ENDS
    lines = []
    for op in ops if hidden <= 0 else (*ops[:_PATH_ENDS], *ops[-_PATH_ENDS:]):
        where = placement.where(flow.names[op])
        lines.append(f"{flow.names[op]} ({flow.types[op]})" + (f" {where}" if where else ""))
    if hidden > 0:
        lines.insert(_PATH_ENDS, f"… {hidden} more")
    return tuple(lines)


def locate(finding: Finding, placement: Placement) -> Finding:
    """Return a finding with its source lines, and with the line that decided its device."""
    ops = finding.ops or (finding.object,)
    frames_of = placement.details.frames
    frames = _distinguishing_frames([frames_of(op) for op in ops[:_MOST_OPS]]) or frames_of(
        finding.object
    )
    if finding.at is not None and finding.at not in map(str, frames):
        frames = frames_of(ops[0])
    return replace(
        finding,
        frames=tuple(str(next(same)) for _, same in groupby(frames, key=str)),
        device_line=None if finding.placed is None else device_line(placement, finding.placed),
    )


def _distinguishing_frames(stacks: Sequence[Sequence[Frame]]) -> Sequence[Frame]:
    """Return the first op's frames, outermost first, down to the first that differs in other ops.

    All ops share the outer frames, such as a call of ``main``, so these do not identify any op. If
    the stacks never differ, the result is the shortest one. If no function built all of the ops,
    it is the whole stack of the first op. Ops without frames, which only a library created, are
    ignored.
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
    """Return the line that decided which device an op requests; None if it is unknown.

    For a colocated op without such a line, the result is the line of the op that it follows.
    """
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        if (line := placement.details.device_line(name)) is not None:
            return str(line)
        op = placement.ops.get(name)
        name = next(iter(op.colocated), name) if op else name
    return None
