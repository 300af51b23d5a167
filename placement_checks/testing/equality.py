"""Assertions on what running a program beside its reference gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.rules.runs.towers_overlap import TowersOverlap
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.testing import assertions
from placement_checks.verification import configuration
from placement_checks.verification.gathering import requested, with_numbers
from placement_checks.verification.policy import Policy

if TYPE_CHECKING:
    from placement_checks.core.program import Batch, Target


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
    evidence = with_numbers(
        requested(towers, gpus=gpus),
        single,
        batch,
        devices=assertions.devices,
        policies=[policy],
        only=rules,
    )
    own = configuration.Settings(policy=evidence.policy)
    policy = configuration.Settings(policy=policy).within(own).policy
    assertions.assert_rules(replace(evidence, policy=policy), *rules)
