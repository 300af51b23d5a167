"""What a rule is."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import ClassVar

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing, OneTower
from placement_checks.core.placement import Op, Placement
from placement_checks.core.results import Finding, Impact, Kind, State, Verdict
from placement_checks.rules.lines.locating import located
from placement_checks.rules.needs import Need

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
        return self.not_checked(str(missing), one_tower=isinstance(missing, OneTower))

    def not_checked(
        self, reason: str, note: str | None = None, *, one_tower: bool = False
    ) -> Verdict:
        return Verdict(self.name, "not-checked", None, reason, note=note, one_tower=one_tower)


def is_among(name: str, patterns: Iterable[str]) -> bool:
    """Whether a field lists a name, itself or by a pattern such as tower_*/bn/*."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_allowed(op: Op, allow: Collection[str]) -> bool:
    """Whether a field lists an op, by its type, its name or a pattern of names."""
    return op.type in allow or is_among(op.name, allow)


def steps(placement: Placement, ops: Sequence[int]) -> tuple[str, ...]:
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


def request_of(op: Op) -> str:
    """The device that an op requests, as text."""
    return op.requested.short if op.requested else "no device"
