from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.roles import roles
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, locate, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.rules.tower_variables import OwnVariables
from placement_checks.util.text import nearest, plural

Shape = tuple[int | None, ...] | None

_NUMBERED = re.compile(r"(.*?)[_:-]?(\d+)")


@dataclass(frozen=True)
class NamesPortable(Rule):
    """Variables are named so that a checkpoint moves between one GPU and many.

    A checkpoint holds names. Variables called tower_0/conv1/weights are not found by the program
    for one GPU, nor, if the scope is changed, by anybody later.

    With a reference, the program for one GPU, its variables decide: each must be here, of the
    same name and shape, and what is trained here must be there. Otherwise no variable may
    be named after a tower or device.

    A part of a variable's name counts as that of a tower if it has a number, only one tower's ops
    are in a scope of that name, and each other tower has one scope of the same name with another
    number: tower_0 and tower_1, but not conv1 and conv2 of one model. Slots are named after their
    variables and go with them.

    Copies of mirrored variables are named after towers, as they must: a checkpoint holds one of
    them. Beside a reference the first copy counts. Local variables are in no checkpoint, and what
    each tower adds up by itself, to be shown or applied, is not missed there. A checkpoint of
    TensorFlow 2 (tf.train.Checkpoint, Keras) holds objects: between two such programs names may
    differ.

    `allow` lists variables, or patterns, that are named so on purpose.
    """

    name = "names-portable"
    kind = "requested"
    explained_by = ("variables-shared",)

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        few = Need.TWO_TOWERS.missing(evidence)
        if few is not None and not evidence.reference:
            return self.without(few)
        if not placement.variables and not (evidence.reference and evidence.reference.variables):
            return self.not_checked("neither the graph nor its reference has variables")
        findings = self._named_after_towers(placement) if few is None else {}
        if evidence.reference and not (placement.step.traced and evidence.reference.step.traced):
            for finding in _unlike(placement, evidence.reference):
                if not matches_any(finding.object, self.allow):
                    findings.setdefault(finding.object, finding)
        return self.verdict(list(findings.values()), plural(len(placement.variables), "variable"))

    def _named_after_towers(self, placement: Placement) -> dict[str, Finding]:
        analysis = analyse(placement)
        scopes = _towers_of_scopes(analysis)
        siblings = _siblings(scopes)
        named: dict[str, str] = {}
        for name in _saved_apart(placement):
            scope = _tower_scope(name, scopes, siblings, len(analysis.towers))
            is_slot = name.rpartition("/")[0] in named
            if scope and not is_slot and not matches_any(name, self.allow):
                named[name] = scope
        own = OwnVariables(placement, named)
        return {
            name: _finding(analysis, own, name, scope, scopes[scope])
            for name, scope in named.items()
        }


def _unlike(placement: Placement, reference: Placement) -> Iterator[Finding]:
    """Findings on variables that a checkpoint of the reference has otherwise, or not at all."""
    ours = {variable.name: variable for variable in placement.variables}
    theirs = {variable.name: variable for variable in reference.variables}
    saved = reference.collected.get(GLOBAL) or theirs.keys()
    trained = placement.collected.get(TRAINABLE, frozenset()) - _other_copies(placement, theirs)
    for name, variable in theirs.items():
        is_slot = name.rpartition("/")[0] in theirs.keys() - ours.keys()
        if name in ours and not _alike(ours[name].shape, variable.shape):
            yield _against(
                placement,
                reference,
                name,
                _Fault(
                    f"variable {name} has shape {ours[name].shape}, and shape {variable.shape} in "
                    f"{reference.program}",
                    str(variable.shape),
                    str(ours[name].shape),
                    "a checkpoint of one cannot be restored into the other",
                    "give both the same shape",
                ),
            )
        elif roles(reference)[name].kind == "accumulator":
            continue  # a checkpoint need not have it
        elif name in saved and name not in ours and not is_slot:
            near = nearest(name, sorted(ours.keys() - theirs.keys()))
            yield _against(
                placement,
                reference,
                name,
                _Fault(
                    f"there is no variable {name}, which {reference.program} has"
                    + (f"; {near} may be meant" if near else ""),
                    f"the name {name}",
                    near or "no such variable",
                    f"what {reference.program} trained of it is not restored, without an error",
                    f"give the variables the names that {reference.program} gives them",
                ),
            )
    for name in ours:
        is_shown = roles(placement)[name].kind == "accumulator"
        if name in trained and name not in theirs and not is_shown:
            yield _against(
                placement,
                reference,
                name,
                _Fault(
                    f"variable {name} is trained, and {reference.program} has none of this name",
                    f"a name that {reference.program} has",
                    name,
                    f"a checkpoint of {reference.program} cannot be restored: it is not in there",
                    f"give the variables the names that {reference.program} gives them",
                ),
            )


def _saved_apart(placement: Placement) -> Iterator[str]:
    """The variables that a checkpoint holds by names of their own."""
    collected = placement.collected
    for variable in placement.variables:
        name = variable.name
        is_local = any(collected.values()) and not any(
            name in names for names in collected.values()
        )
        role = roles(placement)[name]
        if not is_local and (role.tower is None or not role.devices):
            yield name


def _other_copies(placement: Placement, theirs: Collection[str]) -> frozenset[str]:
    """The copies that a checkpoint need not hold: it has another one."""
    found: set[str] = set()
    for group in variable_layout(placement).mirrored:
        names = list(group.copies.values())
        found.update(names if any(name in theirs for name in names) else names[1:])
    return frozenset(found)


def _alike(shape: Shape, other: Shape) -> bool:
    """Whether two shapes may be one; what is not known may be anything."""
    if shape is None or other is None:
        return True
    return len(shape) == len(other) and all(
        None in (size, another) or size == another
        for size, another in zip(shape, other, strict=True)
    )


class _Fault(NamedTuple):
    """In what a variable differs from that of the reference, as texts."""

    message: str
    expected: str
    found: str
    consequence: str
    fix: str


def _against(placement: Placement, reference: Placement, name: str, fault: _Fault) -> Finding:
    """A finding on a variable of either program, with the line that built it there."""
    home = placement if name in placement.ops else reference
    finding = Finding(
        object=name,
        op=home.ops[name].type,
        evidence="requested",
        expected=fault.expected,
        found=fault.found,
        message=fault.message,
        consequence=fault.consequence,
        fix=fault.fix,
        alike=fault.consequence,
    )
    return locate(finding, home)


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
    analysis: TowerAnalysis, own: OwnVariables, variable: str, scope: str, towers: int
) -> Finding:
    tower = analysis.towers[towers.bit_length() - 1]
    anew = own.uses_tf_variable(variable)
    return Finding(
        object=variable,
        op=analysis.placement.ops[variable].type,
        evidence="requested",
        expected="a name without the scope of a tower",
        found=f"the scope of the tower on {tower}",
        message=f"variable {variable} is named after the tower on {tower}, whose ops are in "
        f"{scope}/",
        consequence="a program for one GPU, or for another number of GPUs, does not find it in a "
        "checkpoint",
        fix=_GET_VARIABLE if anew else _NAME_SCOPE,
        alike=(scope.rstrip("0123456789"), anew),
        at=own.line(variable),
    )


_NAME_SCOPE = (
    "use tf.name_scope in place of tf.compat.v1.variable_scope around each tower: get_variable "
    "does not add it to names"
)
_GET_VARIABLE = (
    "use tf.compat.v1.get_variable in place of tf.Variable: it does not add the tower's "
    "tf.name_scope to names"
)
