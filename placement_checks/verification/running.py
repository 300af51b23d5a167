"""Runs a program and its reference, and adds the results to the evidence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from placement_checks.core.devices import Devices
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.evidence import NO_REFERENCE, Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.program import Batch, TargetLike
from placement_checks.core.settings import Policy
from placement_checks.core.target import Loadable
from placement_checks.rules.requirements import Need
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.util.progress import step
from placement_checks.verification.placing import single_gpu
from placement_checks.verification.policy import (
    NEEDS_REFERENCE,
    RUNS,
    evidence_used,
    judged_by,
    rule_with,
)

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement
    from placement_checks.core.program import BatchFunction
    from placement_checks.core.trace import Trace
    from placement_checks.run.compare.pair import ProgramPair
    from placement_checks.run.compare.sessions import Conditions


_T = TypeVar("_T")

_SECONDS_WITHOUT_REFERENCE = 120.0  # for all runs of a program that is its own reference


def with_numbers(
    evidence: Evidence,
    reference: TargetLike | None = None,
    batch: Batch = None,
    *,
    devices: Devices = "auto",
    policies: Sequence[Mapping[str, Mapping[str, Any]]] = (),
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Evidence:
    """Run a program and its reference, and add the trace and the measurement to the evidence.

    Args:
        evidence: the evidence of the program, from `place`.
        reference: the program for one GPU, with the same names of variables. By default the
            program itself, if it is a whole program that reads the number of GPUs from its
            arguments or from TensorFlow.
        batch: a function ``batch(rng, n)`` that returns arrays of n rows by input name, and
            scalars for inputs of rank 0; a target that names such a function; the file of a saved
            case; or None for generated rows.
        devices: ``auto`` uses the GPUs of this machine if there are enough, ``simulated`` none.
        policies: parameters of rules; if several policies set a field, the first one applies.
        only: the rules to check; all by default. The reference is built only if one of them uses
            it, and the programs run only if one of them requires a run.
        without: the rules to skip.

    Raises:
        UsageError: a rule does not exist, or the program was not placed before.
        ConfigError: a policy is invalid.
        InputError: a program or the batch function fails, or TensorFlow is not installed.
    """
    from placement_checks.targets.forms import resolve

    __tracebackhide__ = True
    evidence = Evidence.wrap(evidence)
    settings = judged_by(evidence.settings, policies, only, without)
    program = None if reference is None else resolve(reference)
    ran = with_runs(replace(evidence, settings=settings), program, batch, devices=devices)
    return replace(ran, settings=evidence.settings)


def with_runs(
    evidence: Evidence,
    reference: Loadable | None,
    batch: Batch = None,
    *,
    devices: Devices = "auto",
) -> Evidence:
    """Run a program and its reference, for the rules that the settings of the evidence select.

    The other arguments are as for `with_numbers`.

    Raises:
        UsageError: a rule does not exist, or no rule is left.
        InputError: a program or the batch function fails, or TensorFlow is not installed.
    """
    from placement_checks.tf.startup import check_installed

    __tracebackhide__ = True
    check_installed()
    from placement_checks.capture.programs import load, load_reference
    from placement_checks.run.compare.pair import ProgramPair
    from placement_checks.run.feeding.batches import load_batch_function
    from placement_checks.run.runnable import TimeLimit

    conditions = conditions_of(evidence.settings.policy)
    used = evidence_used(evidence.settings)
    if used.isdisjoint(NEEDS_REFERENCE):
        return evidence
    program = evidence.program
    if reference is None:
        single = single_gpu(program) if program else NO_REFERENCE
        if not single:
            return replace(evidence, reference=single, measurement=single, trace=single)
    else:
        single = load_reference(reference, program) if program else load(reference, 1)
    evidence = replace(evidence, reference=single.requested)
    if used.isdisjoint(RUNS):
        return evidence
    if not program:
        raise InputError(
            evidence.placement.program,
            f"cannot be compared with a reference: {program}",
            "omit the reference, or add the program that printed the log: --graph train.py:build",
            is_predicate=True,
        )
    batch_function = load_batch_function(batch, program.gpus, v1=program.v1)
    limit = TimeLimit.from_now(_SECONDS_WITHOUT_REFERENCE if reference is None else math.inf)
    progress = f"comparing with one GPU, for at most {limit.seconds:.0f} s"
    with step(progress) if reference is None else contextlib.nullcontext():
        pair = _or_missing(
            lambda: ProgramPair.from_programs(program, single, devices, limit=limit)
        )
        if not pair:
            return replace(evidence, measurement=pair, trace=pair)
        if Need.TRACE in used:
            trace = _or_missing(lambda: _trace(pair, batch_function, conditions))
            evidence = replace(evidence, trace=trace)
        if used & {Need.MEASUREMENT, Need.TRAJECTORY}:
            measurement = _measured(pair, devices, batch_function, conditions)
            evidence = replace(evidence, measurement=measurement)
    return evidence


def with_revision(
    evidence: Evidence,
    earlier: Evidence,
    name: str,
    batch: Batch = None,
) -> Evidence:
    """Run a program and an earlier revision of it with the same towers, and add the measurement.

    Both are fed the same rows. Variables that were renamed are compared too.

    Args:
        evidence: the evidence of the program, from another process. Its policy applies to both.
        earlier: the evidence of its earlier revision, from another process.
        name: the name of the earlier revision in messages.
        batch: as for `with_numbers`.

    Raises:
        InputError: a program or the batch function fails.
    """
    from placement_checks.baseline.compare import renamed_variables
    from placement_checks.capture.renaming import with_renamed_variables
    from placement_checks.run.compare.pair import ProgramPair
    from placement_checks.run.feeding.batches import load_batch_function

    assert evidence.program
    assert earlier.program
    program, reference = evidence.program, replace(earlier.program, name=name)
    if names := renamed_variables(earlier.placement, evidence.placement):
        renamed = with_renamed_variables(reference, names)
        if not renamed:
            return replace(evidence, measurement=renamed)
        reference = renamed
    conditions = conditions_of(evidence.settings.policy)
    conditions = replace(conditions, scale=1.0, statistics_per_tower=False)
    batch_function = load_batch_function(batch, program.gpus, v1=program.v1)

    pair = _or_missing(
        lambda: ProgramPair.from_programs(program, reference, "auto", same_towers=True)
    )
    measurement = _measured(pair, "auto", batch_function, conditions) if pair else pair
    return replace(evidence, measurement=measurement)


_ONLY_ON_GPUS = (
    "gradients or weights differ on the GPUs of this machine, by more than the rounding of CPUs "
    "explains; they are equal if CPU devices simulate the GPUs"
)


def _measured(
    pair: ProgramPair, devices: Devices, batch: BatchFunction | None, conditions: Conditions
) -> Measurement | Missing:
    """Measure a pair. With ``auto``, measure again on CPU devices if the numbers differ on GPUs.

    Some algorithms of GPUs round so coarsely that a limit for their rounding would also allow
    mistakes. TensorFlow may use such an algorithm, a convolution in TF32, if this process has
    trained before. CPU devices compute the same program in full precision.
    """
    from placement_checks.run.compare.measure import differs, measure

    first = _or_missing(lambda: measure(pair, batch, conditions))
    if devices != "auto" or pair.towers.simulated or (first and not differs(first, conditions)):
        return first
    with step("repeating the comparison on CPU devices"):
        second = _or_missing(lambda: measure(pair.on_cpus(), batch, conditions))
    if not second:
        return first
    if differs(second, conditions):
        return second
    note = _ONLY_ON_GPUS if first else f"on the GPUs of this machine: {first}"
    return replace(second, notes=[*second.notes, note])


def conditions_of(policy: Policy) -> Conditions:
    """The conditions of runs, from the fields of `GradientsEqual` and `WeightsEqual`."""
    from placement_checks.run.compare.sessions import Conditions

    gradients, weights = rule_with(GradientsEqual, policy), rule_with(WeightsEqual, policy)
    return Conditions(
        rows=gradients.rows,
        shares=gradients.shares,
        scale=gradients.scale,
        statistics_per_tower=gradients.statistics == "tower",
        steps=weights.steps,
        seconds=gradients.seconds,
        gradient_limits=gradients.limits,
        weight_limits=weights.limits,
    )


def _or_missing(run: Callable[[], _T]) -> _T | Missing:
    """The result of a run; missing if a valid program cannot be run here."""
    try:
        return run()
    except CannotRun as reason:
        return reason.missing


def _trace(pair: ProgramPair, batch: BatchFunction | None, conditions: Conditions) -> Trace:
    import numpy as np

    from placement_checks.run.timing.trace import trace_steps

    feeding = pair.feeding(batch, rows=conditions.rows, shares=conditions.shares)
    with feeding.error_context():
        data = feeding.batch(np.random.default_rng(conditions.seed), feeding.rows)
        return trace_steps(pair.towers, feeding.to_towers(data), feeding.rows, conditions.seconds)
