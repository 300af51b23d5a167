"""Which layer sends what, and in which phase of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from placement_checks.analysis.addresses import Part, addresses
from placement_checks.analysis.layers import NONE
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.analysis.transfers import Copied
from placement_checks.core.placement import Placement, producer_of

Phase = Literal["input", "forward", "backward", "average", "update", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)
# A variable that is read elsewhere is read for the forward pass first.
_PHASES: Mapping[Part, Phase] = {
    "input": "input",
    "shared input": "input",
    "reads": "forward",
    "forward": "forward",
    "shared forward": "forward",
    "backward": "backward",
    "shared backward": "backward",
    "average": "average",
    "update": "update",
    "apply": "update",
}
_OF_ONE_VARIABLE: frozenset[Part] = frozenset({"average", "update", "apply"})


class Sent(NamedTuple):
    """A copy, and what it is for.

    Attributes:
        copied: what is copied to where.
        phase: of the op that takes it first.
        variable: whose layer sends it, or in whose update it ends; ``""`` where there is none.
        tower: the number of the tower that takes or else sends it, or -1.
    """

    copied: Copied
    phase: Phase
    variable: str
    tower: int

    @property
    def layer(self) -> str:
        """The scope of the variable, or its name where it has none; ``""`` without one."""
        return self.variable.rpartition("/")[0] or self.variable


class Sum(NamedTuple):
    """What several copies are together; ``unknown`` of them have a size that is not known."""

    copies: int = 0
    bytes: int = 0
    unknown: int = 0

    @staticmethod
    def of(several: Iterable[Copied]) -> Sum:
        sizes = [copied.bytes for copied in several]
        return Sum(len(sizes), sum(filter(None, sizes)), sizes.count(None))


class LayerTraffic(NamedTuple):
    """All that the copies of one layer come to.

    Attributes:
        layer: its name; ``""`` for what is of no layer.
        total: all of them.
        phases: those of each phase that has some.
        largest: the largest of them.
    """

    layer: str
    total: Sum
    phases: Mapping[Phase, Sum]
    largest: Copied


def sent(placement: Placement, copied: Sequence[Copied]) -> list[Sent]:
    """The copies of a step with their phases and layers."""
    number, found = analyse(placement).flow.number, addresses(placement)
    names = analyse(placement).flow.names
    told = []
    for copy in copied:
        source, taker = number[producer_of(copy.tensor)], number[copy.taker]
        part = found.parts[taker]
        first, second = (taker, source) if part in _OF_ONE_VARIABLE else (source, taker)
        layer = found.layers[second if found.layers[first] == NONE else first]
        tower = found.towers[source if found.towers[taker] == NONE else taker]
        variable = "" if layer == NONE else names[layer]
        told.append(Sent(copy, _PHASES.get(part, "other"), variable, tower))
    return told


def by_layer(all_sent: Iterable[Sent]) -> list[LayerTraffic]:
    """The copies, added up for each layer and phase; the layers that send most come first."""
    groups: dict[str, dict[Phase, list[Copied]]] = defaultdict(lambda: defaultdict(list))
    for each in all_sent:
        groups[each.layer][each.phase].append(each.copied)
    layers = []
    for layer, phases in groups.items():
        copies = [copied for each in phases.values() for copied in each]
        sums = {phase: Sum.of(phases[phase]) for phase in PHASES if phase in phases}
        largest = max(copies, key=lambda copied: copied.bytes or 0)
        layers.append(LayerTraffic(layer, Sum.of(copies), sums, largest))
    return sorted(layers, key=lambda each: (-each.total.bytes, -each.total.copies, each.layer))
