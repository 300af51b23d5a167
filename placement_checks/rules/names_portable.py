from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement_checks.placement import Placement
from placement_checks.rules.base import Finding, Rule, Verdict, built_at, is_among
from placement_checks.wiring import Wiring, wiring
from placement_checks.words import counted

_NUMBERED = re.compile(r"(.*?)[_:-]?(\d+)")


@dataclass(frozen=True)
class NamesPortable(Rule):
    """No variable is named after a tower or device, so that a checkpoint moves to one GPU.

    A checkpoint holds names. Variables called tower_0/conv1/weights are not found by the program
    for one GPU, nor, if the scope is changed, by anybody later.

    A part of a variable's name counts as that of a tower if it has a number, only one tower's ops
    are in a scope of that name, and each other tower has one scope of the same name with another
    number: tower_0 and tower_1, but not conv1 and conv2 of one model. Slots are named after their
    variables and go with them.

    `keep` lists variables, or patterns, that are named so on purpose.
    """

    name = "names-portable"
    evidence = "requested"

    keep: tuple[str, ...] = ()

    def check(self, placement: Placement) -> Verdict:
        if few := self.too_few_towers(placement):
            return few
        known = wiring(placement)
        scopes = _towers_of_scopes(known)
        siblings = _siblings(scopes)
        findings: dict[str, Finding] = {}
        for variable in placement.variables:
            name = variable.name
            scope = _tower_scope(name, scopes, siblings, len(known.towers))
            is_slot = name.rpartition("/")[0] in findings
            kept = is_among(name, self.keep)
            if scope and not is_slot and not kept:
                findings[name] = _finding(placement, known, name, scope, scopes[scope])
        return self.verdict(list(findings.values()), counted(len(placement.variables), "variable"))


def _towers_of_scopes(known: Wiring) -> dict[str, int]:
    """For each scope the towers whose ops are in it, a bit each."""
    scopes: dict[str, int] = defaultdict(int)
    for op, bits in enumerate(known.own):
        bits &= known.every
        if bits and not known.backward.ops[op]:
            scope = known.flow.names[op].rpartition("/")[0]
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
    placement: Placement, known: Wiring, variable: str, scope: str, towers: int
) -> Finding:
    tower = known.towers[towers.bit_length() - 1]
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected="a name that no tower is part of",
        found=f"the scope of the tower on {tower}",
        where=placement.where(variable),
        message=f"variable {variable} is named after the tower on {tower}, whose ops are in "
        f"{scope}/: the program for one GPU, or for another number, does not find it in a "
        f"checkpoint{built_at(placement, variable)}",
        cure="open the tower's scope with tf.name_scope, which get_variable does not add to names",
    )
