"""What assertions have in common that run a program beside its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placement_checks.testing import checking, running_test
from placement_checks.verification import configuration
from placement_checks.verification.gathering import requested
from placement_checks.verification.numbers import with_numbers
from placement_checks.verification.policy import Policy

if TYPE_CHECKING:
    from placement_checks.core.program import Batch, Target


def check_run(
    rule: str, towers: Target, single: Target, batch: Batch, gpus: int, /, **fields: Any
) -> None:
    """Assert one rule on what running gives; for fields see `checking.check_rule`.

    Raises:
        AssertionError: the rule is broken, or nothing could be compared; the message lists every
            finding.
        ConfigError: a field that does not fit.
        InputError: a program or the batch function is at fault.
    """
    __tracebackhide__ = True
    _check(towers, single, batch, gpus, {rule: checking.without_none(fields)})


def assert_training_equal(
    towers: Target,
    single: Target,
    batch: Batch = None,
    *,
    gpus: int = 2,
    steps: int = 3,
    tolerance: float | None = None,
    noise: float | None = None,
    scale: float | None = None,
    shares: Sequence[int] | None = None,
    statistics: str | None = None,
    allow: Sequence[str] | str | None = None,
    rows: int | None = None,
    seconds: float | None = None,
) -> None:
    """Assert that towers get the gradients of one GPU, and after some steps its variables.

    The first four arguments are those of `assert_gradients_equal`, the last eight the fields of
    the rule `gradients-equal`; `tolerance` and `allow` hold for `weights-equal` too, and
    `steps` is how many are taken.

    Raises:
        AssertionError: a gradient, weight, slot, statistic or counter differs, or nothing could be
            compared.
        ConfigError: a field that does not fit.
        InputError: a program or the batch function is at fault.
    """
    __tracebackhide__ = True
    shared = checking.without_none({"tolerance": tolerance, "allow": allow})
    own = {
        "noise": noise,
        "scale": scale,
        "shares": shares,
        "statistics": statistics,
        "rows": rows,
        "seconds": seconds,
    }
    policy = {
        "gradients-equal": shared | checking.without_none(own),
        "weights-equal": shared | {"steps": steps},
    }
    _check(towers, single, batch, gpus, policy)


def _check(towers: Target, single: Target, batch: Batch, gpus: int, policy: Policy) -> None:
    """Run both programs, and assert the rules that the policy names."""
    __tracebackhide__ = True
    evidence = with_numbers(
        requested(towers, gpus=gpus),
        single,
        batch,
        devices=running_test.devices,
        policies=[policy],
        only=list(policy),
    )
    own = configuration.Settings(policy=evidence.policy)
    merged = configuration.Settings(policy=policy).defaulting_to(own).policy
    checking.assert_rules(replace(evidence, policy=merged), *policy)
