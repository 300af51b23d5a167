"""The base class of rules, and helpers that most rules share.

`Rule.judge` checks the required evidence, calls `Rule.check` and adds source lines to findings.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, TypedDict, TypeVar

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import TowerIndex
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing, NotApplicable
from placement_checks.core.placement import Op, Placement
from placement_checks.core.results import EvidenceKind, Finding, PathStep, State, Verdict
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import locate
from placement_checks.util.text import listed

NUMBERED_NAME = re.compile(r"(.*?)[_:-]?(\d+)")  # tower_0, gpu:1, conv2
_SPECIAL = re.compile(r"([*?[])")  # in patterns
Fields = Mapping[str, Any]  # values of fields of a rule, by name
_T = TypeVar("_T")
_PATH_ENDS = 4  # ops at each end of a long path
KERAS = "Keras 3"
_MOST_NAMES = 4  # names in a message
_SHOWN_REASONS = 3  # why variables were not compared


@dataclass(frozen=True)
class Rule(ABC):
    """Base class of the rules. The fields of a rule are its parameters; its docstring explains it.

    Attributes:
        name: the name of the rule in reports and settings.
        kind: the kind of evidence that the findings rest on.
        requires: the evidence that the rule needs. If a part is missing, the verdict is
            not-checked.
        uses: further evidence that the rule uses if it is available. A program is built for one
            GPU, and a reference is built or run, only if a checked rule requires or uses the
            result.
        states: the kind of facts that the findings state. It decides which findings of other rules
            follow from them, from which they follow (`CAUSES`), and the place of the rule among
            rules of the same impact. Rules that state no facts come last.
        by_absence: whether something that is missing from the program can break the rule. Such a
            rule is not checked if only a part of the program is known.
        declared_with: the name of another rule. If both rules have a field, its value for the
            other rule applies to this rule too.
        impact: the effect of a finding on the program, unless the finding has an impact itself.
        intended: what ``verify --declare`` states about a program that breaks the rule on purpose;
            ``""`` if this makes no sense, as for a lost update or a wrong number.
        breaks_in_changes: whether the rule is judged if a program differs from its baseline. The
            report then names it for each change that breaks it.
        threads: public reports of the mistake, which the page of the rule lists. Each is an issue
            with a summary in our own words: ``owner/repository#1: what it is about``.
    """

    name: ClassVar[str]
    kind: ClassVar[EvidenceKind]
    requires: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset()
    states: ClassVar[FactKind | None] = None
    by_absence: ClassVar[bool] = False
    declared_with: ClassVar[str] = ""
    impact: ClassVar[Impact] = Impact.LAYOUT
    intended: ClassVar[str] = ""
    breaks_in_changes: ClassVar[bool] = False
    threads: ClassVar[tuple[str, ...]] = ()

    def judge(self, program: Evidence | Placement) -> Verdict:
        """Return the verdict on a program: not-checked if a required part is missing."""
        evidence = Evidence.wrap(program)
        for need in Need:
            if need in self.requires and (missing := need.missing(evidence)) is not None:
                return self.without(missing)
        verdict = self.check(evidence)
        findings = locate(verdict.findings, evidence.placement)
        return replace(verdict, findings=findings) if findings else verdict

    @abstractmethod
    def check(self, evidence: Evidence) -> Verdict:
        """Judge a program that has everything that the rule requires."""

    def intended_fields(self, _evidence: Evidence, _verdict: Verdict) -> Iterator[Fields]:
        """Yield values of fields that declare the findings of a broken verdict as intended.

        ``verify --declare`` uses the first values with which the rule is kept. If there are none,
        it adds the objects of the findings to the field ``allow``.
        """
        yield from ()

    def headline(self, _findings: Sequence[Finding]) -> str:
        """Return a sentence on all findings, or ``""`` if the first finding says enough.

        It is the headline of the HTML page if these are the worst findings of a program.
        """
        return ""

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
        """Return a broken verdict if there are findings, else a kept one.

        The verdict is doubtful if all findings are doubts.
        """
        state: State = "kept"
        if findings:
            state = "doubtful" if all(finding.is_doubt for finding in findings) else "broken"
        return Verdict(self.name, state, self.kind, None, findings, note)

    def without(self, missing: Missing, note: str | None = None) -> Verdict:
        """Return a not-checked verdict for a part of the evidence that is missing."""
        return Verdict(
            self.name,
            "not-checked",
            None,
            str(missing),
            note=note,
            one_tower=isinstance(missing, NotApplicable),
            fix=missing.fix,
        )

    def not_checked(self, reason: str, note: str | None = None, *, fix: str = "") -> Verdict:
        """Return a not-checked verdict with its reason, and the fix if there is one."""
        return self.without(Missing(reason, fix), note)


def require_positive(rule: Rule, *names: str) -> None:
    """Raise a ConfigError if one of the fields with these names is not above 0."""
    for name in names:
        value = getattr(rule, name)
        if value <= 0:
            raise ConfigError(name, f"{value} is not above 0", "give a positive number")


def require_factors(scale: float, shares: Sequence[int]) -> None:
    """Raise a ConfigError if declared factors of gradients are not possible."""
    if not scale:
        raise ConfigError(
            "scale", "0 leaves no gradient", "give the number that multiplies all gradients"
        )
    if any(share < 1 for share in shares):
        raise ConfigError("shares", "a tower gets no rows", "give whole numbers above 0")


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name is in ``patterns``, or matches a pattern such as tower_*/bn/*."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def exact_pattern(name: str) -> str:
    """Return a pattern for `matches_any` that matches only this name."""
    return _SPECIAL.sub(r"[\1]", name)


def is_allowed(op: Op, allow: Collection[str]) -> bool:
    """Return whether ``allow`` lists an op: its type, its name or a pattern of names."""
    return op.type in allow or matches_any(op.name, allow)


class _About(TypedDict):
    object: str
    op: str
    evidence: EvidenceKind


def about(subject: Op | str, evidence: EvidenceKind = "requested") -> _About:
    """Return the first fields of a `Finding` on an op, or on the name of another object."""
    name, kind = (subject, "") if isinstance(subject, str) else (subject.name, subject.type)
    return {"object": name, "op": kind, "evidence": evidence}


def unless_allowed(findings: Iterable[Finding], allow: Collection[str]) -> list[Finding]:
    """Return the findings on objects that ``allow`` does not list."""
    return [finding for finding in findings if not matches_any(finding.object, allow)]


def not_compared(reasons: Mapping[str, str]) -> list[str]:
    """Return notes on variables that were not compared, with the first reasons.

    Args:
        reasons: the reason of each variable.
    """
    variables: dict[str, list[str]] = defaultdict(list)
    for variable, reason in reasons.items():
        variables[reason].append(variable)
    notes = [
        f"{listed(names)} {'was' if len(names) == 1 else 'were'} not compared: {reason}"
        for reason, names in variables.items()
    ]
    others = [name for names in list(variables.values())[_SHOWN_REASONS:] for name in names]
    also = f"{listed(others)} {'was' if len(others) == 1 else 'were'} not compared either"
    return [*notes[:_SHOWN_REASONS], *([also] if others else [])]


def first_of_each(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first finding on each object."""
    by_object: dict[str, Finding] = {}
    for finding in findings:
        by_object.setdefault(finding.object, finding)
    return list(by_object.values())


def repetitions(
    items: Iterable[tuple[Hashable, TowerIndex, _T]],
) -> Iterator[tuple[TowerIndex, _T, TowerIndex, _T]]:
    """Find equal items, such as ops, of several towers.

    Args:
        items: for each item a key that equal items share, its tower, and the item. Of equal items
            of one tower, only the first counts.

    Yields:
        The first tower with equal items, its item, a later tower, and the later tower's item.
    """
    by_key: dict[Hashable, dict[TowerIndex, _T]] = defaultdict(dict)
    for key, tower, item in items:
        by_key[key].setdefault(tower, item)
    for by_tower in by_key.values():
        first, *others = sorted(by_tower)
        for other in others:
            yield first, by_tower[first], other, by_tower[other]


def device_names(declared: str | Collection[str]) -> tuple[str, ...]:
    """Return the device names in a field that has one name or several names."""
    return (declared,) if isinstance(declared, str) else tuple(declared)


def devices_text(names: Iterable[str]) -> str:
    """Return ``/device:CPU:0 or /job:ps`` for the names of devices."""
    return " or ".join(str(Device.parse(name)) for name in names)


def shared_device(evidence: Evidence, verdict: Verdict) -> Iterator[Fields]:
    """Yield a value of the field ``device``: the assigned device of all objects of a verdict."""
    found = {
        op.assigned
        for finding in verdict.findings
        if finding.evidence == "assigned" and (op := evidence.ops.get(finding.object))
    }
    if len(found) == 1 and (device := found.pop()):
        yield {"device": short_name(device)}


def short_name(device: Device) -> str:
    """Return the short form of a device: /gpu:0 for /device:GPU:0."""
    device = Device.parse(device.short)
    if device == Device(type=device.type, index=device.index) and device.type in ("CPU", "GPU"):
        return f"/{device.type.lower()}:{device.index}"
    return device.short


def is_on(device: Device, names: Iterable[str]) -> bool:
    """Return whether a device matches one of the names, such as /cpu:0."""
    return any(device.matches(Device.parse(name)) for name in names)


def requested_device(op: Op) -> str:
    """Return the device that an op requests, as text."""
    return op.requested.short if op.requested else "no device"


def path_lines(placement: Placement, ops: Sequence[int]) -> tuple[PathStep, ...]:
    """Return a line for each op of a path: its name, type and source line.

    The middle of a long path is left out.
    """
    flow = analyze(placement).flow
    hidden = len(ops) - 2 * _PATH_ENDS
    lines = []
    for op in ops if hidden <= 0 else (*ops[:_PATH_ENDS], *ops[-_PATH_ENDS:]):
        name, where = flow.names[op], placement.where(flow.names[op])
        text = f"{name} ({flow.types[op]})" + (f" {where}" if where else "")
        lines.append(PathStep(text, name))
    if hidden > 0:
        lines.insert(_PATH_ENDS, PathStep(f"… {hidden} more"))
    return tuple(lines)


BEFORE_STEP = (
    "under the scope before the first step: layers with model.build(...), slots with "
    "optimizer.build(model.trainable_variables)"
)


def library_limit(
    placement: Placement,
    objects: Sequence[str],
    message: str,
    consequence: str,
    fix: str,
    *,
    library: str = KERAS,
    frames: tuple[str, ...] = (),
) -> Finding:
    """Return one finding on a known limit of a library, for all ops that it affects.

    ``frames`` are the source lines of the user to edit, if there are any.
    """
    first, *others = objects
    numbers = analyze(placement).flow.number
    return Finding(
        **about(placement.ops[first]),
        path=path_lines(placement, [numbers[name] for name in objects]),
        message=message,
        consequence=consequence,
        fix=fix,
        known=library,
        frames=frames,
        others=tuple(others),
    )


def shorten(names: Iterable[str]) -> str:
    """Join distinct names: all of them, or the first four and the number of further names."""
    return listed(list(dict.fromkeys(names)), _MOST_NAMES)
