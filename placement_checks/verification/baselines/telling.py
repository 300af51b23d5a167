"""Tells misplaced ops: those that went the same way together, in the words of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from placement_checks.analysis.spread import NONE, Site, Spread
from placement_checks.core.baseline.difference import Change
from placement_checks.core.baseline.values import PARTS, TOWER, VARIABLE, Baseline, place_of
from placement_checks.core.baseline.words import ranges
from placement_checks.core.op_types import GLUE
from placement_checks.core.placement import Op
from placement_checks.util.text import plural
from placement_checks.verification.baselines.allowed import Misplaced

OWN: Final = "its tower's device"
_MOST_NAMED: Final = 2  # ops
_MOST_LAYERS: Final = 4


class Way(NamedTuple):
    """What ops that are elsewhere have in common that are told together.

    If they are new, ``old`` is where the rest is.
    """

    part: str
    old: str
    new: str
    is_new: bool


@dataclass
class Telling:
    """Tells what is misplaced.

    Attributes:
        old: the baseline.
        spread: the placement.
        is_known: whether the baseline has the variable of an op's layer.
    """

    old: Baseline
    spread: Spread
    is_known: Callable[[Misplaced], bool]
    _ops: Mapping[Misplaced, Sequence[Op]] = field(default_factory=dict)

    def told(self, misplaced: Sequence[Misplaced]) -> tuple[list[Change], list[Change]]:
        """The changes: what has moved, and what is new, in the order of the parts."""
        if not misplaced:
            return [], []
        self._ops = self._found(misplaced)
        ways: dict[Way, list[Misplaced]] = defaultdict(list)
        for each in misplaced:
            ways[self._way(each)].append(each)
        moved: list[Change] = []
        new_there: list[Change] = []
        done: set[Way] = set()
        for way in sorted(ways, key=lambda way: (PARTS.index(way.part), way)):
            if way in done:
                continue
            members, what = ways[way], [way.part]
            backward = way._replace(part="backward")
            if way.part == "forward" and backward in ways:
                layers = {each.group.layer for each in members}
                if {each.group.layer for each in ways[backward]} <= layers:
                    done.add(backward)
                    members, what = [*members, *ways[backward]], ["forward", "backward"]
            (new_there if way.is_new else moved).append(self._change(way, members, what))
        return moved, new_there

    def _found(self, misplaced: Sequence[Misplaced]) -> Mapping[Misplaced, Sequence[Op]]:
        wanted: dict[object, set[Site]] = defaultdict(set)
        for each in misplaced:
            wanted[each.group].add(each.site)
        ops = self.spread.ops_of(wanted)  # type: ignore[arg-type]
        return {each: ops[each.group, each.site] for each in misplaced}

    def _way(self, each: Misplaced) -> Way:
        group = each.group
        is_new = not each.allowed or not self.is_known(each)
        if group.type not in GLUE and group.type not in self._types.get(group.part, ()):
            is_new = is_new or group.part in self._types
        old = " or ".join(sorted({self._said(place, each) for place in each.allowed}))
        return Way(group.part, old, self._own(each.site.place, each), is_new)

    @cached_property
    def _types(self) -> Mapping[str, set[str]]:
        return types_by_part(self.old)

    def _said(self, place: str, each: Misplaced) -> str:
        """A place that the baseline allows, as this placement has it."""
        if place == TOWER:
            return OWN
        if place == VARIABLE and each.group.layer != NONE:
            device = self.spread.placement.by_number[each.group.layer].assigned
            return f"with its variable on {place_of(device)}"
        return self._own(place, each)

    def _own(self, place: str, each: Misplaced) -> str:
        tower = each.group.tower
        return OWN if tower != NONE and self.spread.towers[tower] == place else place

    def _change(self, way: Way, members: Sequence[Misplaced], what: Sequence[str]) -> Change:
        towers = sorted({each.group.tower for each in members} - {NONE})
        old, new = way.old, way.new
        if len(towers) == 1:
            device = self.spread.towers[towers[0]]
            old, new = old.replace(OWN, device), new.replace(OWN, device)
        ops = [op for each in members for op in self._ops[each]]
        number = sum(each.number for each in members)
        words = [" and ".join(what)]
        words += [f" of tower {ranges(towers)}"] if towers else []
        if number < 0.9 * self._all(what, towers):
            words.append(layers_told(self.spread.name_of(each.group.layer) for each in members))
        notes = [f"{plural(number, 'op')}: {_named(ops)}"]
        if number < len(ops):
            notes.insert(0, f"{number} of these {len(ops)}")
        fell = next((op for op in ops if op.requested.is_gpu and op.fallback_reason), None)
        if fell is not None:
            notes.append(f"asks for {place_of(fell.requested)}: {fell.fallback_reason}")
        if way.is_new:
            notes.append(f"the rest is on {old}" if old else "the baseline has none")
        return Change(
            "ops",
            "".join(words),
            "" if way.is_new else old,
            new,
            [op.name for op in ops],
            "; ".join(notes),
            self.spread.placement.where(ops[0].name),
        )

    def _all(self, parts: Sequence[str], towers: Sequence[int]) -> int:
        """How many ops these parts of these towers have."""
        wanted = towers or [NONE]
        return sum(
            sum(sites.values())
            for group, sites in self.spread.groups.items()
            if group.part in parts and group.tower in wanted
        )


def types_by_part(page: Baseline) -> Mapping[str, set[str]]:
    """The types of ops that each part of a baseline has, of those that are counted."""
    types: dict[str, set[str]] = defaultdict(set)
    for (part, _), counts in page.types.items():
        types[part] |= counts.keys()
    return types


def layers_told(layers: Iterable[str]) -> str:
    """The scopes of layers as they follow a part: ``, layer conv1``."""
    scopes = sorted({name.rpartition("/")[0] or name for name in layers} - {""})
    if not scopes:
        return ""
    more = ", ..." if len(scopes) > _MOST_LAYERS else ""
    noun = "layer" if len(scopes) == 1 else "layers"
    return f", {noun} {', '.join(scopes[:_MOST_LAYERS])}{more}"


def _named(ops: Sequence[Op]) -> str:
    """The first of the ops, those that only hold the graph together last."""
    telling = [op for op in ops if op.type not in GLUE] or list(ops[:1])
    more = ", ..." if len(ops) > min(len(telling), _MOST_NAMED) else ""
    return ", ".join(f"{op.type} {op.name}" for op in telling[:_MOST_NAMED]) + more
