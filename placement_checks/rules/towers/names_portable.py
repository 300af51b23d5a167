from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among
from placement_checks.rules.needs import Need
from placement_checks.util.text import nearest, plural

Shape = tuple[int | None, ...] | None

_NUMBERED = re.compile(r"(.*?)[_:-]?(\d+)")


@dataclass(frozen=True)
class NamesPortable(Rule):
    """Variables are named so that a checkpoint moves between one GPU and many.

    With a reference, the program for one GPU, its variables decide: each must be here, of the
    same name and shape, and what is trained here must be there. Otherwise no variable may
    be named after a tower or device.

    A checkpoint holds names. Variables called tower_0/conv1/weights are not found by the program
    for one GPU, nor, if the scope is changed, by anybody later.

    A part of a variable's name counts as that of a tower if it has a number, only one tower's ops
    are in a scope of that name, and each other tower has one scope of the same name with another
    number: tower_0 and tower_1, but not conv1 and conv2 of one model. Slots are named after their
    variables and go with them.

    `allow` lists variables, or patterns, that are named so on purpose.
    """

    name = "names-portable"
    kind = "requested"

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        few = Need.TWO_TOWERS.missing(evidence)
        if few is not None and not evidence.reference:
            return self.without(few)
        if not placement.variables and not (evidence.reference and evidence.reference.variables):
            return self.not_checked("neither the graph nor its reference has variables")
        findings = self._named_after_towers(placement) if few is None else {}
        if evidence.reference:
            for finding in _unlike(placement, evidence.reference):
                if not is_among(finding.object, self.allow):
                    findings.setdefault(finding.object, finding)
        return self.verdict(list(findings.values()), plural(len(placement.variables), "variable"))

    def _named_after_towers(self, placement: Placement) -> dict[str, Finding]:
        analysis = analyse(placement)
        scopes = _towers_of_scopes(analysis)
        siblings = _siblings(scopes)
        findings: dict[str, Finding] = {}
        for variable in placement.variables:
            name = variable.name
            scope = _tower_scope(name, scopes, siblings, len(analysis.towers))
            is_slot = name.rpartition("/")[0] in findings
            if scope and not is_slot and not is_among(name, self.allow):
                findings[name] = _finding(placement, analysis, name, scope, scopes[scope])
        return findings


def _unlike(placement: Placement, reference: Placement) -> Iterator[Finding]:
    """Findings on variables that a checkpoint of the reference has otherwise, or not at all."""
    ours = {variable.name: variable for variable in placement.variables}
    theirs = {variable.name: variable for variable in reference.variables}
    saved = reference.collected.get(GLOBAL) or theirs.keys()
    trained = placement.collected.get(TRAINABLE, frozenset())
    for name, variable in theirs.items():
        is_slot = name.rpartition("/")[0] in theirs.keys() - ours.keys()
        if name in ours and not _alike(ours[name].shape, variable.shape):
            yield _against(
                placement,
                reference,
                name,
                f"variable {name} has shape {ours[name].shape}, and shape {variable.shape} in "
                f"{reference.program}",
                str(variable.shape),
                str(ours[name].shape),
                "give both the same shape",
            )
        elif name in saved and name not in ours and not is_slot:
            near = nearest(name, sorted(ours.keys() - theirs.keys()))
            yield _against(
                placement,
                reference,
                name,
                f"there is no variable {name}, which {reference.program} has",
                f"the name {name}",
                near or "no such variable",
                "give the variables the same names in both programs",
            )
    for name in ours:
        if name in trained and name not in theirs:
            yield _against(
                placement,
                reference,
                name,
                f"variable {name} is trained, and {reference.program} has none of this name",
                f"a name that {reference.program} has",
                name,
                "give the variables the same names in both programs",
            )


def _alike(shape: Shape, other: Shape) -> bool:
    """Whether two shapes may be one; what is not known may be anything."""
    if shape is None or other is None:
        return True
    return len(shape) == len(other) and all(
        None in (size, another) or size == another
        for size, another in zip(shape, other, strict=True)
    )


def _against(
    placement: Placement,
    reference: Placement,
    name: str,
    message: str,
    expected: str,
    found: str,
    fix: str,
) -> Finding:
    """A finding on a variable of either program, with the line that built it there."""
    home = placement if name in placement.ops else reference
    return Finding(
        object=name,
        op=home.ops[name].type,
        evidence="requested",
        expected=expected,
        found=found,
        where=home.where(name),
        message=message + built_at(home, name),
        fix=fix,
    )


def _towers_of_scopes(analysis: TowerAnalysis) -> dict[str, int]:
    """For each scope the towers whose ops are in it, a bit each."""
    scopes: dict[str, int] = defaultdict(int)
    for op, bits in enumerate(analysis.own_towers):
        bits &= analysis.all_towers
        if bits and not analysis.backward.ops[op]:
            scope = analysis.flow.names[op].rpartition("/")[0]
            while scope and bits & ~scopes[scope]:
                scopes[scope] |= bits
                scope = scope.rpartition("/")[0]
    return scopes


def _siblings(scopes: Mapping[str, int]) -> dict[tuple[str, str], list[int]]:
    """The towers in scopes of one name, numbers apart, by the scope around them and the name."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for scope, towers in scopes.items():
        outer, _, name = scope.rpartition("/")
        numbered = _NUMBERED.fullmatch(name)
        for stem in {name, numbered[1] if numbered else name}:
            found[outer, stem].append(towers)
    return found


def _tower_scope(
    variable: str,
    scopes: Mapping[str, int],
    siblings: Mapping[tuple[str, str], Sequence[int]],
    towers: int,
) -> str | None:
    """The scope in a variable's name that is one tower's, if there is one for each."""
    parts = variable.split("/")
    for depth in range(1, len(parts)):
        scope = "/".join(parts[:depth])
        numbered = _NUMBERED.fullmatch(parts[depth - 1])
        if numbered is None or scopes.get(scope, 0).bit_count() != 1:
            continue
        alike = siblings["/".join(parts[: depth - 1]), numbered[1]]
        if all(alike.count(1 << tower) == 1 for tower in range(towers)):
            return scope
    return None


def _finding(
    placement: Placement, analysis: TowerAnalysis, variable: str, scope: str, towers: int
) -> Finding:
    tower = analysis.towers[towers.bit_length() - 1]
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected="a name without the scope of a tower",
        found=f"the scope of the tower on {tower}",
        where=placement.where(variable),
        message=f"variable {variable} is named after the tower on {tower}, whose ops are in "
        f"{scope}/: a program for one GPU, or for another number of GPUs, does not find it in a "
        f"checkpoint{built_at(placement, variable)}",
        fix="open the tower's scope with tf.name_scope, which get_variable does not add to names",
    )
