"""Computes the row and the phase of each op in the picture.

Rows are a tree of layers or name scopes, with a limited number of rows on each level. The phase of
an op is its column or box in the picture. It follows from the part of the step that the op is in.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from placement_checks.analysis.addresses import Addresses, Part, addresses
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.devices import Device
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Placement
from placement_checks.report.page.devices import NOWHERE

_MAX_ROWS = 14  # on one level
_RANGES = 10  # if a level has more rows, at most this many rows of neighbors replace them


class NumberedRows(NamedTuple):
    """Rows in the order of their numbers: from the top down, each before the rows inside it.

    Row 0 contains all other rows.

    Attributes:
        names, parents: the name and the parent of each row.
        number: the number of each row of `Rows`, by its index in `Rows`.
    """

    names: Sequence[str]
    parents: Sequence[int]
    number: Sequence[int]


class Rows:
    """A tree of rows, in the order of their creation."""

    def __init__(self) -> None:
        self._names = [""]
        self._inside: list[list[int]] = [[]]
        self._found: dict[tuple[int, str], int] = {}
        self._sections: set[int] = set()

    def section(self, name: str) -> int:
        """Returns a new row on the top level, separate from other rows of the same name."""
        row = self._add(0, name)
        self._sections.add(row)
        return row

    def row(self, path: Sequence[str], inside: int = 0) -> int:
        """Returns the row at a path of names inside a row, and creates the rows that are missing.

        A path is, for example, ``("block1", "conv2", "MatMul")``.
        """
        row = inside
        for name in path:
            found = self._found.get((row, name))
            if found is None:
                found = self._found[row, name] = self._add(row, name)
            row = found
        return row

    def _add(self, parent: int, name: str) -> int:
        self._names.append(name)
        self._inside.append([])
        self._inside[parent].append(len(self._names) - 1)
        return len(self._names) - 1

    def numbered(self) -> NumberedRows:
        """Returns the drawn rows: on a level with too many rows, neighbors are combined."""
        for row in range(len(self._names)):
            self._fold(row)
        names: list[str] = []
        parents: list[int] = []
        number = [0] * len(self._names)
        todo = [(0, -1)]
        while todo:
            row, parent = todo.pop()
            number[row] = len(names)
            names.append(self._names[row])
            parents.append(parent)
            todo += [(each, number[row]) for each in reversed(self._inside[row])]
        return NumberedRows(names, parents, number)

    def _fold(self, row: int) -> None:
        inside = self._inside[row]
        plain = [each for each in inside if each not in self._sections]
        if len(plain) <= _MAX_ROWS:
            return
        size = -(-len(plain) // _RANGES)
        begins, hidden = {}, set()
        for start in range(0, len(plain), size):
            members = plain[start : start + size]
            if len(members) == 1:
                continue
            self._names.append(f"{self._names[members[0]]} … {self._names[members[-1]]}")
            self._inside.append(members)
            begins[members[0]] = len(self._names) - 1
            hidden.update(members[1:])
        self._inside[row] = [begins.get(each, each) for each in inside if each not in hidden]
        for new in begins.values():
            self._fold(new)


Scope = tuple[str, ...]
_NUMBERS = re.compile(r"\d+")
_PART = re.compile(r"/part_\d+$")  # of a partitioned variable


def variable_scopes(placement: Placement) -> Mapping[str, Scope]:
    """Returns the scope of each variable, or its name if it has no scope.

    If towers have copies of a variable, the scope is without the parts of the name that differ
    between the copies, such as ``tower_1``.
    """
    shared = {name: _shared_name(names) for names in _tower_copies(placement) for name in names}
    found = {}
    for name, *_ in placement.variables:
        parts = _PART.sub("", shared.get(name, name)).split("/")
        found[name] = tuple(parts[:-1]) or tuple(parts)
    return found


def strip_common_scopes(scope_of: Mapping[str, Scope]) -> Mapping[str, Scope]:
    """Returns the scopes without the outer scopes that all variables share.

    If no scope is left, the last part of the name of the variable is returned as its scope.
    """
    scopes_of = list(scope_of.values())
    depth = 0
    while len({scope[: depth + 1] for scope in scopes_of}) == 1 < max(map(len, scopes_of)) - depth:
        depth += 1
    return {name: scope[depth:] or (name.rpartition("/")[2],) for name, scope in scope_of.items()}


def _tower_copies(placement: Placement) -> Iterator[Sequence[str]]:
    """Yields, for each variable that several towers have copies of, the names of its copies."""
    layout = variable_layout(placement)
    for group in layout.mirrored:
        yield [name for _, name in sorted({**group.copies, **group.diverging}.items())]
    own: dict[tuple[str, str], list[str]] = defaultdict(list)
    towers: dict[tuple[str, str], int] = defaultdict(int)
    for name, *_ in placement.variables:
        readers = layout.readers.get(name, 0)
        if readers.bit_count() != 1 or name in layout.copies or name in layout.diverging:
            continue
        first, _, rest = name.partition("/")
        key = _NUMBERS.sub("", first), rest
        own[key].append(name)
        towers[key] |= readers
    for key, names in own.items():
        if len(names) > 1 and towers[key].bit_count() == len(names):
            yield names


def _shared_name(names: Sequence[str]) -> str:
    """The parts that the names share, joined.

    The shortest name is returned instead if the names have different numbers of parts, or share
    fewer than two parts.
    """
    parts = [name.split("/") for name in names]
    shortest = min(parts, key=len)
    if any(len(each) != len(shortest) for each in parts):
        return "/".join(shortest)
    same = [own[0] for own in zip(*parts, strict=True) if len(set(own)) == 1]
    return "/".join(same if len(same) > 1 else shortest)


class Phase(IntEnum):
    """The column or box of an op. `page/assets/data.js` has the same numbers."""

    VARIABLE = 0
    READ = 1
    FORWARD = 2
    BACKWARD = 3
    AVERAGE = 4
    UPDATE = 5
    OUTSIDE = 6  # of a step
    ANY = 7  # other ops of a step, and all ops of a log


PHASES: Mapping[Part, Phase] = {
    "variable": Phase.VARIABLE,
    "reads": Phase.READ,
    "input": Phase.FORWARD,
    "shared input": Phase.FORWARD,
    "forward": Phase.FORWARD,
    "shared forward": Phase.FORWARD,
    "evaluate": Phase.FORWARD,
    "shared evaluate": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "shared backward": Phase.BACKWARD,
    "average": Phase.AVERAGE,
    "apply": Phase.UPDATE,
    "update": Phase.UPDATE,
    "summaries": Phase.OUTSIDE,
    "init": Phase.OUTSIDE,
    "save": Phase.OUTSIDE,
    "other": Phase.OUTSIDE,
}
# The kinds of copied tensors.
KINDS: Sequence[str] = (
    *("parameters", "inputs", "activations", "gradients", "all-reduce", "updates", "other"),
)
_KINDS: Mapping[Part, str] = {
    "variable": "parameters",
    "reads": "parameters",
    "input": "inputs",
    "shared input": "inputs",
    "forward": "activations",
    "shared forward": "activations",
    "backward": "gradients",
    "shared backward": "gradients",
    "average": "gradients",
    "apply": "updates",
    "update": "updates",
}


def copy_kind(part: Part) -> int:
    """Returns the index in `KINDS` for the tensors that an op yields, by the part of the op."""
    return KINDS.index(_KINDS.get(part, "other"))


_MAX_DEPTH = 3  # of name scopes, in the picture of a log
_SMALL_SCOPE = 2  # ops
_NUMBER = re.compile(r"_?\d+$")


class PageLayout(NamedTuple):
    """The positions of ops in the picture, by the numbers of the ops."""

    phases: Sequence[int]  # the columns or boxes
    rows: Sequence[int]  # the rows, as indices in `tree`
    towers: Sequence[int]  # the towers, or -1
    parts: Sequence[Part]  # the parts of the step; empty without data flow
    tree: Mapping[str, Sequence[Any]]  # the names and parents of the rows
    roles: Mapping[str, int]  # the rows that are not layers, by role


def page_layout(placement: Placement) -> PageLayout:
    """Returns the positions of ops by data flow; by names for a log, which lacks data flow."""
    return _by_flow(placement) if placement.requested else _by_names(placement)


def _by_flow(placement: Placement) -> PageLayout:
    """Rows by layer, phases by the part of the step."""
    found = addresses(placement)
    rows = Rows()
    roles = {"inputs": rows.section("inputs")}
    layers = _layers(placement, found, rows)
    titles = {"average": "aggregate", "update": "update", "other": "other ops"}
    for role, title in {**titles, "outside": "outside a step"}.items():
        roles[role] = rows.section(title)
    sections = {
        Phase.AVERAGE: roles["average"],
        Phase.UPDATE: roles["update"],
        Phase.ANY: roles["other"],
        Phase.OUTSIDE: roles["outside"],
    }
    number, steps = analyze(placement).flow.number, analyze(placement).updates.in_step
    own: dict[OpId | None, int] = {number[name]: row for name, row in layers.items()}
    # The rows of ops without a layer: the last layer in the backward pass, which begins there;
    # otherwise the inputs.
    default_row = defaultdict(lambda: roles["inputs"])
    default_row[Phase.BACKWARD] = next(reversed([*layers.values()]), roles["inputs"])
    row_of: dict[tuple[Phase, OpId | None, str], int] = {}
    phases, at = [], []
    for op, part, layer, of in zip(
        number.values(), found.parts, found.layers, placement.by_number, strict=True
    ):
        phase = Phase.ANY if part == "other" and steps[op] else PHASES[part]
        phases.append(phase)
        if phase is Phase.VARIABLE:
            at.append(own.get(op, roles["update"]))
            continue
        key = phase, layer, of.type
        if key not in row_of:
            inside = sections.get(phase) or own.get(layer, default_row[phase])
            row_of[key] = rows.row([of.type], inside)
        at.append(row_of[key])
    names, parents, number_of = rows.numbered()
    drawn = [number_of[row] for row in at]
    towers = [-1 if tower is None else tower for tower in found.towers]
    tree = {"names": names, "parents": parents}
    roles = {role: number_of[row] for role, row in roles.items()}
    return PageLayout(phases, drawn, towers, found.parts, tree, roles)


def _layers(placement: Placement, found: Addresses, rows: Rows) -> Mapping[str, int]:
    """The rows of the variables that the model reads, and of their slots, in data flow order."""
    number = analyze(placement).flow.number
    scope_of = variable_scopes(placement)
    names = [variable.name for variable in placement.variables]
    computing = {
        layer
        for part, layer in zip(found.parts, found.layers, strict=True)
        if PHASES[part] in (Phase.FORWARD, Phase.BACKWARD)
    }
    owners = find_slots(placement).owner_of
    read = [name for name in names if number[name] in computing and name not in owners]
    read.sort(key=lambda name: found.depth.get(number[name], 0))
    inside = strip_common_scopes({name: scope_of[name] for name in read})
    layers = {name: rows.row(inside[name]) for name in read}
    of_slots = {name: layers[owner] for name, owner in owners.items() if owner in layers}
    return of_slots | layers


def _by_names(placement: Placement) -> PageLayout:
    """Rows by name scope; outermost scopes that are alike share a row (see `_stems`)."""
    rows = Rows()
    unscoped = rows.section("in no scope")
    stems = _stems(placement)
    phases, at = [], []
    for op in placement.by_number:
        first, *scope = op.name.split("/")[:-1] or ("",)
        is_variable = op.type in VARIABLES
        phases.append(Phase.VARIABLE if is_variable else Phase.ANY)
        path = (stems[first], *scope[: _MAX_DEPTH - 1], op.type) if first else (op.type,)
        at.append(rows.row(path, 0 if first else unscoped))
    names, parents, number_of = rows.numbered()
    drawn = [number_of[row] for row in at]
    tree = {"names": names, "parents": parents}
    roles = dict.fromkeys(("inputs", "average", "update", "other", "outside"), NOWHERE)
    return PageLayout(phases, drawn, [NOWHERE] * len(at), (), tree, roles)


def _stems(placement: Placement) -> Mapping[str, str]:
    """The name of the row of each outermost scope.

    Scopes whose names differ in a number share a row in two cases: each scope is on a different
    device, like ``tower_0`` and ``tower_1``, or all scopes are very small. The layers ``dense``
    and ``dense_1`` on one device have separate rows.
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
        are_small = all(on[scope].total() <= _SMALL_SCOPE for scope in scopes_of)
        joined = len(scopes_of) > 1 and (are_copies or are_small)
        stems.update({scope: stem if joined else scope for scope in scopes_of})
    return stems
