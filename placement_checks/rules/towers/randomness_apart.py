from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.inputs import applies_to_rows, outputs_of, random_uses
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.impact import Impact
from placement_checks.core.op_types import (
    CAST,
    IDENTITIES,
    RANDOM_SEEDED,
    RANDOM_STATELESS,
    SEED_OF_KEY,
)
from placement_checks.core.placement import producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import (
    KERAS,
    Rule,
    library_limit,
    matches_any,
    repetitions,
    shorten,
    unless_allowed,
)
from placement_checks.rules.catalog import state_mistake
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_argument
from placement_checks.step.row_sets import RowSets
from placement_checks.util.text import join_and, plural


@dataclass(frozen=True)
class RandomnessApart(Rule):
    """No two towers draw the same random numbers.

    If all towers use one dropout mask, or one sample of noise, the mean of their gradients is as
    noisy as the gradient of one tower. The usual causes are a fixed seed in the loop over towers,
    a mask that is drawn before the loop, and a generator with a state that all towers read, such
    as the generator of Keras 3's Dropout in a graph.

    Two stateful random ops draw the same numbers if both seeds are equal and not 0. Two stateless
    random ops draw the same numbers if their seeds are equal as terms, for example if the seeds
    are copies of one variable under a strategy. Towers share a draw if they compute with the same
    part of the result. Numbers that are not for the rows of a batch may be shared: scalars, noise
    and masks of weights, numbers in place of weights, and masks of features.

    `allow` lists random ops, or patterns, that towers share on purpose.
    """

    name = "randomness-apart"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.NOISE
    requires = frozenset({Need.TWO_TOWERS})
    intended = "these ops draw the same numbers in several towers"

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        analysis = analyze(evidence.placement)
        strategy = evidence.placement.strategy
        rows = evidence.placement.cached(RowSets)
        draws, shared = list(_draws(analysis, rows)), list(_shared_draws(analysis, rows))
        count = max(len(draws), len(shared))
        if not count:
            return self.not_checked("no tower draws random numbers")
        findings = []
        of_keras = []
        for tower, original, later, draw in repetitions(draws):
            name = analysis.flow.names[draw]
            if matches_any(name, self.allow) or not _is_for_rows(analysis, rows, draw):
                continue
            if strategy is not None and _is_seeded_by_keras(analysis, strategy, draw):
                of_keras.append(name)
            else:
                findings.append(_equal_seeds(analysis, tower, original, later, draw))
        objects = {*of_keras, *(finding.object for finding in findings)}
        shared = [finding for finding in shared if finding.object not in objects]
        findings += unless_allowed(shared, self.allow)
        if strategy is not None and of_keras:
            findings.append(_equal_seeds_of_keras(analysis, strategy, of_keras))
        return self.verdict(findings, plural(count, "random op"))


def _draws(analysis: TowerAnalysis, rows: RowSets) -> Iterator[tuple[Hashable, TowerIndex, OpId]]:
    """Find the random ops of towers in a step.

    Yields:
        A key that ops with equal random numbers share, the op's tower, and the op.
    """
    placement, flow = analysis.placement, analysis.flow
    for op in flow.having((RANDOM_SEEDED | RANDOM_STATELESS.keys()).__contains__):
        tower = analysis.tower_of[op]
        if tower is None or not analysis.updates.in_step[op]:
            continue
        name, kind = flow.names[op], flow.types[op]
        if kind in RANDOM_SEEDED:
            yield analysis.draw_key(op), tower, op
        else:
            seed = RANDOM_STATELESS[kind]
            inputs = [
                tensor for tensor in placement.ops[name].inputs if not tensor.startswith("^")
            ]
            yield (kind, *map(rows.key, inputs[seed : seed + 1])), tower, op


def _is_for_rows(analysis: TowerAnalysis, rows: RowSets, draw: OpId) -> bool:
    """Whether the rows of a tower get numbers of their own; not, for example, its weights."""
    readers = (
        op
        for op in analysis.flow.consumers[draw]
        if analysis.updates.in_step[op] and not analysis.backward.ops[op]
    )
    numbers = outputs_of(analysis, analysis.flow.names[draw])
    return applies_to_rows(analysis, rows, numbers, readers)


def _seed_of(analysis: TowerAnalysis, draw: OpId) -> str:
    """Return the op that makes the seed of a random op: for stateful ops, the random op."""
    ops, name = analysis.placement.ops, analysis.flow.names[draw]
    at = RANDOM_STATELESS.get(ops[name].type)
    while at is not None:
        inputs = [each for each in ops[name].inputs if not each.startswith("^")]
        source = producer_of(inputs[at]) if at < len(inputs) else ""
        if source not in ops:
            break
        name, at = source, 0 if ops[source].type in _PASS_SEED else None
    return name


_PASS_SEED = IDENTITIES | {CAST, SEED_OF_KEY}


def _equal_seeds(
    analysis: TowerAnalysis, tower: TowerIndex, original: OpId, later: TowerIndex, draw: OpId
) -> Finding:
    placement, flow = analysis.placement, analysis.flow
    name, first = flow.names[draw], flow.names[original]
    seed, other = _seed_of(analysis, draw), _seed_of(analysis, original)
    is_of_tower = seed not in (name, other)  # then the line of the seed is the line to edit
    is_seeded = placement.ops[name].type in RANDOM_SEEDED
    mistake = mistakes.EQUAL_SEEDS if is_seeded else mistakes.EQUAL_STATELESS_SEEDS
    facts = {"op": name, "later": analysis.towers[later], "tower": analysis.towers[tower]}
    set_seed = "tf.random.set_seed" if placement.step.traced else "tf.compat.v1.set_random_seed"
    seeds = {"seed": placement.details.attributes(name).get("seed2", 0), "set_seed": set_seed}
    return state_mistake(
        placement,
        name,
        mistake,
        {**facts, **seeds, "first": first},
        [original, draw],
        ops=(seed,) if is_of_tower else (),
        frames=blame_argument(
            placement.details.frames(seed) or placement.details.frames(name), "seed"
        ),
        devices=(*analysis.towers[tower].devices, *analysis.towers[later].devices),
    )


def _is_seeded_by_keras(analysis: TowerAnalysis, strategy: Strategy, draw: int) -> bool:
    """Whether a replica's copy of a Keras seed generator seeds a stateless op."""
    flow = analysis.flow
    seed = RANDOM_STATELESS.get(flow.types[draw])
    if seed is None:
        return False
    behind = flow.reachable(flow.inputs[draw][seed : seed + 1])
    return any(
        "seed_generator" in flow.names[op] and flow.names[op] in strategy.copies for op in behind
    )


def _equal_seeds_of_keras(
    analysis: TowerAnalysis, strategy: Strategy, draws: Sequence[str]
) -> Finding:
    layers = shorten(_IN_REPLICA.sub("", draw.partition("/stateless")[0]) for draw in draws)
    return library_limit(
        analysis.placement,
        draws,
        f"random layers of {KERAS}, such as Dropout, draw the same numbers in each of "
        f"{len(strategy.replicas)} replicas, because their seeds are equal copies: {layers}",
        mistakes.EQUAL_SEEDS.consequence.format(noun="replica"),
        "your own layer with tf.nn.dropout, or tf_keras. If it is intended: "
        "--set randomness-apart.allow=*",
    )


_IN_REPLICA = re.compile(r"^replica_\d+/")  # a strategy's scope of each replica but the first


def _shared_draws(analysis: TowerAnalysis, rows: RowSets) -> Iterator[Finding]:
    """Yield findings on random ops that give several towers the same numbers."""
    flow = analysis.flow
    users: dict[OpId, dict[Hashable, dict[TowerIndex, OpId]]]
    users = defaultdict(lambda: defaultdict(dict))
    for use in random_uses(analysis, rows):
        users[use.source][rows.key(use.tensor)].setdefault(use.tower, use.op)
    for draw, by_tensor in users.items():
        consumer_by_tower = max(by_tensor.values(), key=len)
        if len(consumer_by_tower) < 2:
            continue
        name, consumers = flow.names[draw], [op for _, op in sorted(consumer_by_tower.items())]
        mask = sum(1 << tower for tower in consumer_by_tower)
        kind = tower_kind(analysis.placement)
        users_text = join_and(flow.names[op] for op in consumers[:3])
        yield state_mistake(
            analysis.placement,
            name,
            mistakes.ONE_DRAW,
            {"towers": analysis.names_of(mask, kind), "op": name, "users": users_text},
            [draw, *consumers],
            devices=analysis.devices_of(mask),
        )
