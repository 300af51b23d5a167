from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from placement_checks.analysis.equivalence import EqualTensors
from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import RANDOM_SEEDED, RANDOM_STATELESS
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, is_among, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural

_DRAWS = RANDOM_SEEDED | RANDOM_STATELESS.keys()


@dataclass(frozen=True)
class RandomnessApart(Rule):
    """No two towers draw the same random numbers.

    A seed written into the loop over towers gives each the same dropout mask and the same noise
    in every step, which N towers were to average away. So does one state of a generator that all
    towers read, as Keras 3's Dropout does in a graph.

    Ops that keep their own state have the same seed and second seed; without either they draw
    different numbers. Stateless ones have equal seeds, by construction.

    `allow` lists ops, or patterns, that draw the same numbers on purpose.
    """

    name = "randomness-apart"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        drawn: dict[Hashable, dict[int, int]] = defaultdict(dict)
        count = 0
        for op, tower, key in _draws(placement, analysis):
            count += 1
            if key is not None:
                drawn[key].setdefault(tower, op)
        if not count:
            return self.not_checked("no tower draws random numbers")
        findings = [
            _finding(placement, analysis, by_tower, tower)
            for by_tower in drawn.values()
            for tower in sorted(by_tower)[1:]
        ]
        return self.verdict(
            [finding for finding in findings if not is_among(finding.object, self.allow)],
            plural(count, "random op"),
        )


def _draws(placement: Placement, analysis: TowerAnalysis) -> Iterator[tuple[int, int, Hashable]]:
    """The random ops of towers in a step: the op, its tower, what equal draws have in common."""
    equal = EqualTensors(placement, analysis.flow)
    for op in analysis.flow.having(_DRAWS.__contains__):
        tower = analysis.tower_of[op]
        if tower < 0 or not analysis.updates.steps[op]:
            continue
        name, kind = analysis.flow.names[op], analysis.flow.types[op]
        if kind in RANDOM_SEEDED:
            attributes = placement.details.attributes(name)
            seeds = attributes.get("seed", 0), attributes.get("seed2", 0)
            yield op, tower, (kind, *seeds) if any(seeds) else None
        else:
            seed = RANDOM_STATELESS[kind]
            inputs = [
                tensor for tensor in placement.ops[name].inputs if not tensor.startswith("^")
            ]
            yield op, tower, (kind, *(equal.of(tensor) for tensor in inputs[seed : seed + 1]))


def _finding(
    placement: Placement, analysis: TowerAnalysis, by_tower: dict[int, int], tower: int
) -> Finding:
    first = min(by_tower)
    name, original = analysis.flow.names[by_tower[tower]], analysis.flow.names[by_tower[first]]
    kind = analysis.flow.types[by_tower[tower]]
    return Finding(
        object=name,
        op=kind,
        evidence="requested",
        expected="random numbers of its own for each tower",
        found=f"those of {original}",
        path=steps(placement, [by_tower[first], by_tower[tower]]),
        message=f"{name} of the tower on {analysis.towers[tower]} draws the same random numbers "
        f"as {original} of the tower on {analysis.towers[first]}: their seeds are equal",
        consequence="noise that averaging over towers was to even out is the same in both",
        fix=_seeded(placement, name) if kind in RANDOM_SEEDED else _STATELESS,
        alike=kind in RANDOM_SEEDED,
    )


def _seeded(placement: Placement, name: str) -> str:
    seed = placement.details.attributes(name).get("seed2", 0)
    return (
        f"add the tower's number: seed={seed} + i; or leave it out, and call "
        "tf.compat.v1.set_random_seed before the loop"
    )


_STATELESS = (
    "add the tower's number: seed=[seed, i]; of layers of Keras, one with a seed of its own for "
    "each tower"
)
