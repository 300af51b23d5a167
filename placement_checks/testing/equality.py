"""Runs a program beside its reference, so that the rules on numbers can be judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placement_checks.core.machines import checked_gpus
from placement_checks.core.placement import Placement
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.rules.runs.towers_overlap import TowersOverlap
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.testing import assertions
from placement_checks.verification import configuration, gathering
from placement_checks.verification.judging import rules_of
from placement_checks.verification.policy import Policy

if TYPE_CHECKING:
    from placement_checks.core.program import Batch, BatchFunction, Target
    from placement_checks.core.trace import Trace
    from placement_checks.run.measuring import Conditions
    from placement_checks.run.pair import Pair

_NUMERIC = frozenset({GradientsEqual.name, WeightsEqual.name})


def with_numbers(
    placement: Placement,
    target: Target,
    reference: Target,
    batch: Batch = None,
    *,
    gpus: int | None = None,
    devices: str = "auto",
    policies: Sequence[Policy] = (),
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Placement:
    """The placement of a program, with its reference and what running the two gave.

    Args:
        placement: what `place` made of the program.
        target: the program: a builder, a `Program`, or one as the command line names it.
        reference: the same for one GPU, with the same names of variables.
        batch: ``batch(rng, n)`` gives arrays of n rows by the names of the inputs, those of rank 0
            whole; a target that names such a function; the file of a saved case; or None for rows
            that are made up.
        gpus: how many the program is built for; None for those of the placement's machine.
        devices: ``auto`` takes real GPUs where there are enough, ``simulated`` never does.
        policies: parameters of the rules, the policy that counts most first.
        only: the rules to check, if not all; nothing is run if they are static.
        without: the rules to leave out.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256, or there is no such rule.
        ConfigError: a policy is wrong.
        InputError: a program or the batch function is at fault.
    """
    from placement_checks.core.errors import CannotRun
    from placement_checks.loading.batches import batch_of, program_of
    from placement_checks.run.measuring import Conditions, measure
    from placement_checks.run.pair import Pair

    __tracebackhide__ = True
    rules = {rule.name: rule for rule in rules_of(placement, policies)}
    gradients, weights = (rules[rule.name] for rule in (GradientsEqual, WeightsEqual))
    assert isinstance(gradients, GradientsEqual)
    assert isinstance(weights, WeightsEqual)
    placement = replace(placement, reference=gathering.ask(reference, gpus=1))
    wanted = set(only or rules) - set(without)
    if wanted.isdisjoint({*_NUMERIC, TowersOverlap.name}):
        return placement
    if gpus is None:
        gpus = placement.machine.towers if placement.machine else 2
    conditions = Conditions(
        rows=gradients.rows,
        shares=gradients.shares,
        scale=gradients.scale,
        by_tower=gradients.statistics == "tower",
        steps=weights.steps,
        seconds=gradients.seconds,
    )
    rows = batch_of(batch)
    try:
        pair = Pair.built(program_of(target), program_of(reference), checked_gpus(gpus), devices)
    except CannotRun as reason:
        return replace(placement, unmeasured=str(reason))
    if TowersOverlap.name in wanted:
        try:
            placement = replace(placement, trace=_watched(pair, rows, conditions))
        except CannotRun as reason:
            placement = replace(placement, unmeasured=str(reason))
    if wanted & _NUMERIC:
        try:
            placement = replace(placement, numbers=measure(pair, rows, conditions))
        except CannotRun as reason:
            placement = replace(placement, unmeasured=str(reason))
    return placement


def _watched(pair: Pair, batch: BatchFunction | None, conditions: Conditions) -> Trace:
    """Some steps of the towers, traced."""
    import numpy as np

    from placement_checks.run.tracing import watched

    feeding = pair.feeding(batch, rows=conditions.rows, shares=conditions.shares)
    data = feeding.batch(np.random.default_rng(conditions.seed), feeding.rows)
    return watched(pair.towers, feeding.to_towers(data), feeding.rows, conditions.seconds)


def assert_gradients_equal(
    towers: Target, single: Target, batch: Batch = None, *, gpus: int = 2, **fields: Any
) -> None:
    """Assert that towers give every variable the gradient that one GPU gives it.

    Args:
        towers: the function that builds the towers, or a target that names it.
        single: that of the program for one GPU, with the same names of variables.
        batch: ``batch(rng, n)`` gives arrays of n rows by the names of the inputs; None for rows
            that are made up.
        gpus: how many the towers are built for.
        fields: of the rule `gradients-equal`, such as ``scale=2``.

    Raises:
        AssertionError: a gradient differs, or nothing could be compared; the message lists every
            variable with the likely mistake, the source line and the cure.
        ConfigError: a field that does not fit.
        InputError: a program or the batch function is at fault.
    """
    __tracebackhide__ = True
    policy = {GradientsEqual.name: fields}
    _assert(towers, single, batch, gpus, policy, GradientsEqual.name)


def assert_training_equal(
    towers: Target,
    single: Target,
    batch: Batch = None,
    *,
    gpus: int = 2,
    steps: int = 3,
    **fields: Any,
) -> None:
    """Assert that towers get the gradients of one GPU, and after some steps its variables.

    Args:
        towers: as for `assert_gradients_equal`, like the next three.
        single: the program for one GPU.
        batch: its rows.
        gpus: how many the towers are built for.
        steps: how many are taken.
        fields: of the rule `gradients-equal`; those named `leave_out` and `tolerance` hold for
            `weights-equal` too.

    Raises:
        AssertionError: a gradient, weight, slot, statistic or counter differs, or nothing could be
            compared.
        ConfigError: a field that does not fit.
        InputError: a program or the batch function is at fault.
    """
    __tracebackhide__ = True
    shared = {key: fields[key] for key in ("leave_out", "tolerance") if key in fields}
    policy: Policy = {GradientsEqual.name: fields, WeightsEqual.name: {"steps": steps} | shared}
    _assert(towers, single, batch, gpus, policy, GradientsEqual.name, WeightsEqual.name)


def assert_towers_overlap(
    towers: Target, single: Target, batch: Batch = None, *, gpus: int = 2, **fields: Any
) -> None:
    """Assert that no tower waits for another, so that all can compute at once.

    Args:
        towers: as for `assert_gradients_equal`, like the next three.
        single: the program for one GPU.
        batch: its rows.
        gpus: how many the towers are built for.
        fields: of the rule `towers-overlap`, such as ``least=0.8``.

    Raises:
        AssertionError: towers take turns, or nothing could be run.
        ConfigError: a field that does not fit.
        InputError: a program or the batch function is at fault.
    """
    __tracebackhide__ = True
    policy = {TowersOverlap.name: fields}
    _assert(towers, single, batch, gpus, policy, TowersOverlap.name)


def _assert(
    towers: Target, single: Target, batch: Batch, gpus: int, policy: Policy, *rules: str
) -> None:
    __tracebackhide__ = True
    placement = with_numbers(
        gathering.ask(towers, gpus=gpus),
        towers,
        single,
        batch,
        gpus=gpus,
        devices=assertions.devices,
        policies=[policy],
        only=rules,
    )
    own = configuration.Settings(policy=placement.policy)
    policy = configuration.Settings(policy=policy).within(own).policy
    assertions.assert_rules(replace(placement, policy=policy), *rules)
