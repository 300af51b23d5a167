"""Where the ops of a program are drawn: in which row, and in which column or box."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.addresses import Addresses, Part, addresses
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Placement
from placement_checks.report.picture.phases import PHASES, Phase
from placement_checks.report.picture.places import NOWHERE
from placement_checks.report.picture.rows import Rows
from placement_checks.report.picture.scopes import inside_common, scopes

_DEEPEST = 3  # scopes of names, where the data flow is not known
_FEW = 2  # ops
_NUMBER = re.compile(r"_?\d+$")


class Drawn(NamedTuple):
    """Where the ops of a program are drawn, by their numbers.

    Attributes:
        phases: in which column or box.
        rows: in which row; of the rows in `tree`.
        towers: the tower that they work for, or -1.
        parts: what they do in a step; empty where the data flow is not known.
        tree: the names and parents of the rows.
        roles: the rows of what is no layer, by what it is.
    """

    phases: Sequence[int]
    rows: Sequence[int]
    towers: Sequence[int]
    parts: Sequence[Part]
    tree: Mapping[str, Sequence[Any]]
    roles: Mapping[str, int]


def drawn(placement: Placement) -> Drawn:
    """By data flow where it is known, else by names alone, as of a log."""
    return _by_flow(placement) if placement.requested else _by_names(placement)


def _by_flow(placement: Placement) -> Drawn:
    """Rows by layer, phases by the part that an op has in a step."""
    found = addresses(placement)
    rows = Rows()
    roles = {"inputs": rows.section("inputs")}
    layers = _layers(placement, found, rows)
    roles |= {
        role: rows.section(name)
        for role, name in (
            ("average", "bring together"),
            ("update", "update"),
            ("other", "other ops"),
            ("outside", "outside a step"),
        )
    }
    sections = {
        Phase.AVERAGE: roles["average"],
        Phase.UPDATE: roles["update"],
        Phase.ANY: roles["other"],
        Phase.OUTSIDE: roles["outside"],
    }
    number, steps = analyse(placement).flow.number, analyse(placement).updates.steps
    own = {number[name]: row for name, row in layers.items()}
    # A backward pass begins behind the last layer.
    beside = defaultdict(lambda: roles["inputs"])
    beside[Phase.BACKWARD] = next(reversed([*layers.values()]), roles["inputs"])
    row_of: dict[tuple[Phase, int, str], int] = {}
    phases, at = [], []
    for op, (part, layer, of) in enumerate(
        zip(found.parts, found.layers, placement.by_number, strict=True)
    ):
        phase = Phase.ANY if part == "other" and steps[op] else PHASES[part]
        phases.append(phase)
        if phase is Phase.VARIABLE:
            at.append(own.get(op, roles["update"]))
            continue
        key = phase, layer, of.type
        if key not in row_of:
            inside = sections.get(phase) or own.get(layer, beside[phase])
            row_of[key] = rows.of([of.type], inside)
        at.append(row_of[key])
    tree = rows.numbered()
    return Drawn(
        phases,
        [tree.number[row] for row in at],
        found.towers,
        found.parts,
        {"names": tree.names, "parents": tree.parents},
        {role: tree.number[row] for role, row in roles.items()},
    )


def _layers(placement: Placement, found: Addresses, rows: Rows) -> Mapping[str, int]:
    """The rows of the variables that the model reads, and of their slots, in the step's order."""
    number = analyse(placement).flow.number
    scope_of = scopes(placement)
    names = [variable.name for variable in placement.variables]
    computing = {
        layer
        for part, layer in zip(found.parts, found.layers, strict=True)
        if PHASES[part] in (Phase.FORWARD, Phase.BACKWARD)
    }
    read = [name for name in names if number[name] in computing and name not in found.slot_of]
    read.sort(key=lambda name: found.depth.get(number[name], 0))
    inside = inside_common({name: scope_of[name] for name in read})
    layers = {name: rows.of(inside[name]) for name in read}
    slots = {name: layers[owner] for name, owner in found.slot_of.items() if owner in layers}
    return slots | layers


def _by_names(placement: Placement) -> Drawn:
    """Rows by name scope, where only devices are known; scopes of one stem are copies of one."""
    rows = Rows()
    unscoped = rows.section("in no scope")
    stems = _stems(placement)
    phases, at = [], []
    for op in placement.by_number:
        first, *scope = op.name.split("/")[:-1] or ("",)
        is_variable = op.type in VARIABLES
        phases.append(Phase.VARIABLE if is_variable else Phase.ANY)
        path = (stems[first], *scope[: _DEEPEST - 1], op.type) if first else (op.type,)
        at.append(rows.of(path, 0 if first else unscoped))
    tree = rows.numbered()
    roles = dict.fromkeys(("inputs", "average", "update", "other", "outside"), NOWHERE)
    return Drawn(
        phases,
        [tree.number[row] for row in at],
        [NOWHERE] * len(at),
        (),
        {"names": tree.names, "parents": tree.parents},
        roles,
    )


def _stems(placement: Placement) -> Mapping[str, str]:
    """What the first scopes are called: by their stem where each has a device of its own.

    So tower_0 and tower_1 line up, and the layers dense and dense_1 are two. Of scopes that hold
    next to nothing the stem is enough.
    """
    on: dict[str, Counter[Device | None]] = defaultdict(Counter)
    for op in placement.by_number:
        scope, inside, _ = op.name.partition("/")
        if inside:
            on[scope][op.assigned] += 1
    by_stem: dict[str, list[str]] = defaultdict(list)
    for scope in on:
        by_stem[_NUMBER.sub("", scope) or scope].append(scope)
    stems = {}
    for stem, scopes_of in by_stem.items():
        apart = {on[scope].most_common(1)[0][0] for scope in scopes_of}
        are_copies = len(apart) == len(scopes_of)
        are_small = all(on[scope].total() <= _FEW for scope in scopes_of)
        joined = len(scopes_of) > 1 and (are_copies or are_small)
        stems.update({scope: stem if joined else scope for scope in scopes_of})
    return stems
