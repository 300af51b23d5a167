from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placement_checks.analysis.graph.value_numbering import EqualTensors
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.towers.inputs import random_uses
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import RANDOM_SEEDED, RANDOM_STATELESS
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.keras_limits import KERAS, keras_limit_finding, shorten
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, plural

_REPLICA = re.compile(r"^replica_\d+/")  # how a strategy names the ops of a later replica
_DRAWS = RANDOM_SEEDED | RANDOM_STATELESS.keys()


@dataclass(frozen=True)
class RandomnessApart(Rule):
    """No two towers draw the same random numbers.

    If all towers use one dropout mask, or one sample of noise, the mean of their gradients is as
    noisy as the gradient of one tower. The usual causes: a seed that is written into the loop over
    towers, a mask that is drawn before the loop, and a generator whose state all towers read, as
    Keras 3's Dropout does in a graph.

    Two stateful random ops draw the same numbers if both seeds are equal and not 0. Two stateless
    ones do if their seeds are equal by construction; the copies that a strategy keeps of a
    variable are equal. Towers share a draw if they compute with the same part of it. Scalars, and
    noise that is added to weights, may be shared.

    `allow` lists random ops, or patterns, that towers share on purpose.
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
        shared = list(_shared_draws(placement, analysis))
        if not count and not shared:
            return self.not_checked("no tower draws random numbers")
        findings = []
        of_keras = []
        for by_tower in drawn.values():
            for tower in sorted(by_tower)[1:]:
                name = analysis.flow.names[by_tower[tower]]
                if matches_any(name, self.allow):
                    continue
                if _seed_of_keras(analysis, by_tower[tower]):
                    of_keras.append(name)
                else:
                    findings.append(_finding(placement, analysis, by_tower, tower))
        named = {*of_keras, *(finding.object for finding in findings)}
        findings += [
            finding
            for finding in shared
            if finding.object not in named and not matches_any(finding.object, self.allow)
        ]
        if of_keras:
            findings.append(_same_masks_of_keras(placement, of_keras))
        return self.verdict(findings, plural(max(count, len(shared)), "random op"))


def _seed_of_keras(analysis: TowerAnalysis, draw: int) -> bool:
    """Whether a stateless op is seeded by a replica's copy of a seed generator of Keras."""
    strategy = analysis.placement.strategy
    seed = RANDOM_STATELESS.get(analysis.flow.types[draw])
    if strategy is None or seed is None:
        return False
    behind = analysis.flow.reachable(analysis.flow.inputs[draw][seed : seed + 1])
    return any(
        "seed_generator" in (name := analysis.flow.names[op]) and name in strategy.copies
        for op in behind
    )


def _same_masks_of_keras(placement: Placement, draws: Sequence[str]) -> Finding:
    """That the random layers of Keras 3 draw the same numbers in all replicas."""
    strategy = placement.strategy
    assert strategy is not None
    layers = shorten(_REPLICA.sub("", draw.partition("/stateless")[0]) for draw in draws)
    return keras_limit_finding(
        placement,
        draws,
        f"random layers of {KERAS}, such as Dropout, draw the same numbers in each of "
        f"{len(strategy.replicas)} replicas, whose seeds are equal copies: {layers}",
        _SAME_NOISE,
        "tf.nn.dropout in a layer of your own, or tf_keras. If it is meant: "
        "--set randomness-apart.allow=*",
        expected="random numbers of its own for each replica",
        found="the same random numbers",
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
            yield op, tower, (kind, *(equal.key(tensor) for tensor in inputs[seed : seed + 1]))


def _shared_draws(placement: Placement, analysis: TowerAnalysis) -> Iterator[Finding]:
    """Findings on random ops of which several towers use the same numbers."""
    equal = EqualTensors(placement, analysis.flow)
    users: dict[int, dict[Hashable, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for use in random_uses(analysis):
        users[use.source][equal.key(use.tensor)].setdefault(use.tower, use.op)
    for draw, by_tensor in users.items():
        most = max(by_tensor.values(), key=len)
        if len(most) > 1:
            yield _shared(placement, analysis, draw, most)


def _shared(
    placement: Placement, analysis: TowerAnalysis, draw: int, users: Mapping[int, int]
) -> Finding:
    name, kind = analysis.flow.names[draw], analysis.flow.types[draw]
    towers = analysis.names_of(sum(1 << tower for tower in users))
    ops = [analysis.flow.names[op] for _, op in sorted(users.items())]
    return Finding(
        object=name,
        op=kind,
        evidence="requested",
        expected="random numbers of its own for each tower",
        found=f"one draw for {towers}",
        path=path_lines(placement, [draw, *(op for _, op in sorted(users.items()))]),
        message=f"{towers} compute with the same random numbers: {name} draws them once, and "
        f"{join_and(ops[:3])} use them",
        consequence=_SAME_NOISE,
        fix="draw in the loop over towers, once for each; or draw for all rows and give each "
        "tower its part: tf.split(noise, num_gpus)[i]",
        alike="shared",
    )


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
        path=path_lines(placement, [by_tower[first], by_tower[tower]]),
        message=f"{name} of the tower on {analysis.towers[tower]} draws the same random numbers "
        f"as {original} of the tower on {analysis.towers[first]}: their seeds are equal",
        consequence=_SAME_NOISE,
        fix=_seeded(placement, name)
        if kind in RANDOM_SEEDED
        else _STATELESS
        if placement.strategy is None
        else _STATELESS_OF_REPLICA,
        alike=kind in RANDOM_SEEDED,
    )


def _seeded(placement: Placement, name: str) -> str:
    seed = placement.details.attributes(name).get("seed2", 0)
    return (
        f"add the tower's number: seed={seed} + i; or leave it out, and call "
        "tf.compat.v1.set_random_seed before the loop"
    )


_STATELESS_OF_REPLICA = (
    "add the replica's number to the seed: "
    "tf.distribute.get_replica_context().replica_id_in_sync_group"
)
_SAME_NOISE = "the noise is the same in these towers, so their mean does not reduce it"
_STATELESS = (
    "add the tower's number: seed=[seed, i]; of layers of Keras, one with a seed of its own for "
    "each tower"
)
