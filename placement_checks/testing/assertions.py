"""An assertion for each rule: `assert_no_fallback` asserts the rule ``no-fallback``.

An assertion takes the return value of `place`, or a placement alone. Assertions on runs take a
program and its reference: see `assert_gradients_equal`. The other parameters are the fields of
the rule, which ``placement-checks explain no-fallback`` describes. If a field is None, the value
of the program's policy applies, or else the default of the rule.

An assertion raises an `AssertionError` if the rule is broken or could not be checked, and a
`ConfigError` if a field has an invalid value. An assertion on a run raises an `InputError` if a
program or the batch function fails.

This file is written by ``python -m tools.generate``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.program import Batch, TargetLike
from placement_checks.testing.checking import check_rule, check_run

__tracebackhide__ = True  # of all functions below, in pytest


def assert_aggregated_before_clipped(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `aggregated-before-clipped`: the gradients of all replicas are added up before
    they are clipped.
    """
    check_rule(evidence, "aggregated-before-clipped", allow=allow)


def assert_averaging_on_host(
    evidence: Evidence | Placement, device: str | Sequence[str] | None = None
) -> None:
    """Assert `averaging-on-host`: the gradients of the towers are combined on the declared
    device, /cpu:0 by default.
    """
    check_rule(evidence, "averaging-on-host", device=device)


def assert_created_in_scope(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `created-in-scope`: trained variables and optimizer slots are created in the scope
    of their strategy.
    """
    check_rule(evidence, "created-in-scope", allow=allow)


def assert_equal_to_one_gpu(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `equal-to-one-gpu`: the step for several GPUs is the step for one GPU, for every
    batch.
    """
    check_rule(evidence, "equal-to-one-gpu", allow=allow)


def assert_every_tower_counts(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `every-tower-counts`: each variable's update depends on the loss of every tower
    that reads the variable.
    """
    check_rule(evidence, "every-tower-counts", allow=allow)


def assert_files_apart(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `files-apart`: no two ranks of a Horovod program write checkpoints, logs or
    summaries to the same path.
    """
    check_rule(evidence, "files-apart", allow=allow)


def assert_gradients_averaged(
    evidence: Evidence | Placement,
    scale: float | None = None,
    shares: Sequence[int] | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `gradients-averaged`: each loss term and penalty counts as much in each update as
    on one GPU.
    """
    check_rule(evidence, "gradients-averaged", scale=scale, shares=shares, allow=allow)


def assert_gradients_colocated(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `gradients-colocated`: each backward op sits on the device of its forward op."""
    check_rule(evidence, "gradients-colocated", allow=allow)


def assert_gradients_equal(
    towers: TargetLike,
    single: TargetLike,
    batch: Batch = None,
    *,
    gpus: int = 2,
    tolerance: float | None = None,
    noise: float | None = None,
    scale: float | None = None,
    shares: Sequence[int] | None = None,
    statistics: Literal["batch", "tower"] | None = None,
    allow: str | Sequence[str] | None = None,
    rows: int | None = None,
    seconds: float | None = None,
) -> None:
    """Assert `gradients-equal`: each variable receives the same gradient as in the program for
    one GPU.

    `towers` and `single` are the functions that build the two programs, with equal names of
    variables, or targets that name these functions. `batch(rng, n)` returns arrays of n rows by
    input name; a target or a saved case also works. Without it, rows are generated. `gpus` is
    the number of GPUs that the towers are built for.
    """
    check_run(
        "gradients-equal",
        towers,
        single,
        batch,
        gpus,
        tolerance=tolerance,
        noise=noise,
        scale=scale,
        shares=shares,
        statistics=statistics,
        allow=allow,
        rows=rows,
        seconds=seconds,
    )


def assert_inputs_distinct(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `inputs-distinct`: no two towers read the same slice of the batch; input ops are
    on the CPU and built once.
    """
    check_rule(evidence, "inputs-distinct", allow=allow)


def assert_loss_of_all_towers(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `loss-of-all-towers`: the reported loss includes every tower's loss, and no
    summary is repeated in each tower.
    """
    check_rule(evidence, "loss-of-all-towers", allow=allow)


def assert_losses_apart(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `losses-apart`: no tower's loss depends on another tower."""
    check_rule(evidence, "losses-apart", allow=allow)


def assert_names_portable(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `names-portable`: a checkpoint saved on one GPU can be restored on several GPUs,
    and the reverse.
    """
    check_rule(evidence, "names-portable", allow=allow)


def assert_no_fallback(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `no-fallback`: no op that requests a GPU is placed on a CPU, or on another GPU
    because its GPU is missing.
    """
    check_rule(evidence, "no-fallback", allow=allow)


def assert_no_idle_device(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `no-idle-device`: every GPU of the machine computes."""
    check_rule(evidence, "no-idle-device", allow=allow)


def assert_one_update(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `one-update`: one update per variable and step; the step counter increases by one."""
    check_rule(evidence, "one-update", allow=allow)


def assert_placeable(evidence: Evidence | Placement) -> None:
    """Assert `placeable`: the placer can place every op on the device that the program
    requests.
    """
    check_rule(evidence, "placeable")


def assert_randomness_apart(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `randomness-apart`: no two towers draw the same random numbers."""
    check_rule(evidence, "randomness-apart", allow=allow)


def assert_replicas_in_sync(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `replicas-in-sync`: the copies of a variable on all replicas start equal and take
    the same update.
    """
    check_rule(evidence, "replicas-in-sync", allow=allow)


def assert_session_memory(
    evidence: Evidence | Placement,
    fraction: float | None = None,
    others: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Assert `session-memory`: the session does not take all memory of every GPU."""
    check_rule(evidence, "session-memory", fraction=fraction, others=others)


def assert_shards_balanced(
    evidence: Evidence | Placement,
    by: Literal["", "round-robin", "bytes"] | None = None,
    most: float | None = None,
    job: str | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `shards-balanced`: variables are spread over the parameter servers as declared."""
    check_rule(evidence, "shards-balanced", by=by, most=most, job=job, allow=allow)


def assert_slots_with_variables(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `slots-with-variables`: optimizer slots and moving averages sit with their
    variable.
    """
    check_rule(evidence, "slots-with-variables", allow=allow)


def assert_towers_alike(
    evidence: Evidence | Placement, allow: str | Sequence[str] | None = None
) -> None:
    """Assert `towers-alike`: the towers are the same computation on different devices."""
    check_rule(evidence, "towers-alike", allow=allow)


def assert_towers_overlap(
    towers: TargetLike,
    single: TargetLike,
    batch: Batch = None,
    *,
    gpus: int = 2,
    least: float | None = None,
) -> None:
    """Assert `towers-overlap`: no tower waits for another: all of them compute at once.

    `towers` and `single` are the functions that build the two programs, with equal names of
    variables, or targets that name these functions. `batch(rng, n)` returns arrays of n rows by
    input name; a target or a saved case also works. Without it, rows are generated. `gpus` is
    the number of GPUs that the towers are built for.
    """
    check_run("towers-overlap", towers, single, batch, gpus, least=least)


def assert_trainables_trained(
    evidence: Evidence | Placement, frozen: str | Sequence[str] | None = None
) -> None:
    """Assert `trainables-trained`: the step updates every trainable variable that a loss reads."""
    check_rule(evidence, "trainables-trained", frozen=frozen)


def assert_transfer_budget(
    evidence: Evidence | Placement,
    bytes: int | None = None,
    copies: int | None = None,
    link_bytes: int | None = None,
    link_copies: int | None = None,
    constant_bytes: int | None = None,
    rows: int | None = None,
) -> None:
    """Assert `transfer-budget`: bytes and copies between devices per step stay under the budget
    that you declare.
    """
    check_rule(
        evidence,
        "transfer-budget",
        bytes=bytes,
        copies=copies,
        link_bytes=link_bytes,
        link_copies=link_copies,
        constant_bytes=constant_bytes,
        rows=rows,
    )


def assert_update_ops_run(
    evidence: Evidence | Placement,
    tower: str | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `update-ops-run`: the step updates statistics, such as moving averages, from one
    tower or from all towers.
    """
    check_rule(evidence, "update-ops-run", tower=tower, allow=allow)


def assert_variables_on_host(
    evidence: Evidence | Placement,
    device: str | Sequence[str] | None = None,
    allow: str | Sequence[str] | None = None,
    local: str | Sequence[str] | None = None,
) -> None:
    """Assert `variables-on-host`: every variable sits on the declared device, /cpu:0 by
    default.
    """
    check_rule(evidence, "variables-on-host", device=device, allow=allow, local=local)


def assert_variables_shared(
    evidence: Evidence | Placement,
    allow: str | Sequence[str] | None = None,
    layout: Literal["", "central", "mirrored"] | None = None,
) -> None:
    """Assert `variables-shared`: all towers read the same variables."""
    check_rule(evidence, "variables-shared", allow=allow, layout=layout)


def assert_weights_equal(
    towers: TargetLike,
    single: TargetLike,
    batch: Batch = None,
    *,
    gpus: int = 2,
    steps: int | None = None,
    tolerance: float | None = None,
    noise: float | None = None,
    allow: str | Sequence[str] | None = None,
) -> None:
    """Assert `weights-equal`: after some training steps all variables have the same values as
    in the reference.

    `towers` and `single` are the functions that build the two programs, with equal names of
    variables, or targets that name these functions. `batch(rng, n)` returns arrays of n rows by
    input name; a target or a saved case also works. Without it, rows are generated. `gpus` is
    the number of GPUs that the towers are built for.
    """
    check_run(
        "weights-equal",
        towers,
        single,
        batch,
        gpus,
        steps=steps,
        tolerance=tolerance,
        noise=noise,
        allow=allow,
    )
