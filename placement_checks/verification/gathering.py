"""Gathers the evidence that rules judge: placements, and what running programs gives."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.errors import CannotRun, InputError, UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.gpus import Devices, checked_gpus, local_gpus
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import INITIALISATION_TESTS, NO_OP, VARIABLE_READS
from placement_checks.core.placement import Placement
from placement_checks.core.program import Batch, BuiltProgram, Target
from placement_checks.rules.base import Rule
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.rules.runs.towers_overlap import TowersOverlap
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.util.garbage import gc_paused
from placement_checks.util.progress import doing
from placement_checks.verification.judging import rules_of
from placement_checks.verification.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from placement_checks.core.program import BatchFunction
    from placement_checks.core.trace import Trace
    from placement_checks.run.measuring import Conditions
    from placement_checks.run.pair import ProgramPair

_T = TypeVar("_T")

_REQUESTS_NO_DEVICE = VARIABLE_READS | INITIALISATION_TESTS | {NO_OP}


def place(
    target: Target,
    *,
    gpus: int = 2,
    machine: Machine | str | None = None,
    soft: bool | None = None,
    devices: Devices = "auto",
) -> Evidence:
    """The device that each op of a program or graph requests, and the one the placer assigns.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or any of them
            as the command line names it (``train.py:build_towers``).
        gpus: the number of GPUs that the builder gets, and that a host or worker has.
        machine: the devices, or their written form such as ``"worker*8: gpu*4"``; by default the
            smallest machine that the graph's device names need.
        soft: whether the placer may use other devices than requested; by default what the
            program's session configuration says, else not (TensorFlow 1's default).
        devices: ``auto`` asks the placer of this machine's GPUs where these are the devices,
            ``real`` asks no other, ``simulated`` never does.

    Raises:
        UsageError: the target or machine is not valid, or ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built, read or placed.
        PlacerError: the placer process died or hung.
    """
    return request(target, gpus=gpus, machine=machine, soft=soft).placed(devices)


@dataclass(frozen=True)
class Request:
    """What is sent to the placer: a program, what it asks for, and the machine.

    Attributes:
        built: the program.
        requested: the devices that it requests, and whether it may be placed softly.
        machine: the devices.
    """

    built: BuiltProgram
    requested: Placement
    machine: Machine

    @cached_property
    def evidence(self) -> Evidence:
        """What is known of the program before it is placed."""
        return _evidence_of(self.built, self.requested)

    def placed(self, devices: Devices = "auto") -> Evidence:
        """Where the placer puts the ops; as for `place`."""
        from placement_checks.placer.placing import placing

        graph_def = self.built.graph_def
        with (
            doing(f"placing {self.requested.program}"),
            placing(self.requested, graph_def, self.machine, devices) as placed,
        ):
            evidence = self.evidence  # while the placer works
            with gc_paused():
                self._analyse()
                return replace(evidence, placement=placed())

    def _analyse(self) -> None:
        """Analyse the towers; where that fails, the rules that need it tell."""
        with contextlib.suppress(Exception):
            analyse(self.requested).prepare()


def request(
    target: Target,
    *,
    gpus: int = 2,
    machine: Machine | str | None = None,
    soft: bool | None = None,
) -> Request:
    """What `place` sends to the placer; the arguments are the same."""
    checked_gpus(gpus)
    _check(target)
    if isinstance(machine, str):
        machine = Machine.parse(machine)
    elif not isinstance(machine, Machine | None):
        raise UsageError(
            f"machine {machine!r:.60}",
            "is not a machine",
            "write it like 'gpu*4' or 'worker*8: gpu*4'",
        )
    _start_placer()
    if machine is not None:
        gpus = machine.towers
    built = _load(target, gpus)
    placement = built.requested if soft is None else replace(built.requested, soft=soft)
    machine = machine or Machine.smallest(_devices(placement), gpus)
    return Request(built, placement, machine)


def requested(target: Target, *, gpus: int = 2) -> Evidence:
    """The device that each op of a program or graph requests; no placer is asked.

    Args:
        target: as for `place`.
        gpus: the number of GPUs that the builder gets.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built or read.
    """
    checked_gpus(gpus)
    _check(target)
    built = _load(target, gpus)
    return _evidence_of(built, built.requested)


def _load(target: Target, gpus: int) -> BuiltProgram:
    from placement_checks.loading.programs import load

    return load(target, gpus)


def _evidence_of(built: BuiltProgram, requested: Placement) -> Evidence:
    single = _single_gpu(built)
    return Evidence(
        requested,
        program=built,
        single_gpu=single.requested if single else single,
        policy=built.step.policy,
    )


def _single_gpu(built: BuiltProgram) -> BuiltProgram | Missing:
    if built.program and built.gpus == 1 and built.program.takes_num_gpus:
        return Missing("it was built for one GPU")
    return built.for_gpus(1)


def _check(target: Target) -> None:
    """Check a target as far as that needs no TensorFlow.

    Raises:
        InputError: it names nothing that can be loaded.
    """
    from placement_checks.loading.targets import check

    if isinstance(target, str | Path):
        check(target)


def _devices(placement: Placement) -> set[Device]:
    """The devices that a program asks for.

    An op that only follows a variable does not ask for a GPU, nor does one that computes nothing:
    under a device function both get the variable's job and the worker's GPU, which the parameter
    server need not have.
    """
    return {
        replace(op.requested, type=None, index=None)
        if op.requested.job and op.type in _REQUESTS_NO_DEVICE
        else op.requested
        for op in placement.ops.values()
    }


def prepare(*, placer: bool = True) -> None:
    """Load TensorFlow, without its log lines; ``placer`` starts the placer process beside it.

    Raises:
        InputError: TensorFlow is not installed, or does not load.
    """
    from placement_checks.loading.start import import_tensorflow

    if placer:
        _start_placer()
    import_tensorflow()


def _start_placer() -> None:
    """Let the placer process load TensorFlow meanwhile, where no GPU here could answer instead."""
    from placement_checks.placer.worker.client import phantom

    if not local_gpus():
        phantom.start()


def with_numbers(
    evidence: Evidence,
    reference: Target,
    batch: Batch = None,
    *,
    devices: Devices = "auto",
    policies: Sequence[Policy] = (),
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Evidence:
    """The evidence, with the reference of the program and what running the two gives.

    Args:
        evidence: of the program, as `place` gives it.
        reference: the same for one GPU, with the same names of variables.
        batch: ``batch(rng, n)`` gives arrays of n rows by the names of the inputs, and scalars
            for those of rank 0; a target that names such a function; the file of a saved case; or
            None for rows that are made up.
        devices: ``auto`` takes real GPUs where there are enough, ``simulated`` never does.
        policies: parameters of the rules; where two name the same one, the first counts.
        only: the rules to check, if not all; nothing is run if they are static.
        without: the rules to leave out.

    Raises:
        UsageError: a rule does not exist, or the program was not placed before.
        ConfigError: a policy is wrong.
        InputError: a program or the batch function is at fault.
    """
    from placement_checks.loading.batches import batch_of
    from placement_checks.loading.programs import load_reference
    from placement_checks.run.measuring import measure
    from placement_checks.run.pair import ProgramPair

    __tracebackhide__ = True
    evidence = Evidence.of(evidence)
    rules = {rule.name: rule for rule in rules_of(evidence, policies)}
    conditions = _conditions(rules)
    towers = evidence.program
    single = load_reference(reference, towers) if towers else _load(reference, 1)
    evidence = replace(evidence, reference=single.requested)
    selected = set(only or rules) - set(without)
    if selected.isdisjoint({GradientsEqual.name, WeightsEqual.name, TowersOverlap.name}):
        return evidence
    rows = batch_of(batch, towers.gpus if towers else 1)
    if not towers:
        raise InputError(
            evidence.placement.program,
            f"cannot be run beside a reference: {towers}",
            "leave out the reference, or name the program that printed a log with --graph",
        )
    pair = _or_missing(lambda: ProgramPair.of(towers, single, devices))
    if not pair:
        return replace(evidence, measurement=pair, trace=pair)
    if TowersOverlap.name in selected:
        trace = _or_missing(lambda: _traced(pair, rows, conditions))
        evidence = replace(evidence, trace=trace)
    if selected & {GradientsEqual.name, WeightsEqual.name}:
        measurement = _or_missing(lambda: measure(pair, rows, conditions))
        evidence = replace(evidence, measurement=measurement)
    return evidence


def _or_missing(run: Callable[[], _T]) -> _T | Missing:
    """What a run gives; missing where a sound program cannot be run here."""
    try:
        return run()
    except CannotRun as reason:
        return Missing(str(reason))


def _conditions(rules: Mapping[str, Rule]) -> Conditions:
    """How programs are run, by the parameters of the rules on runs."""
    from placement_checks.run.measuring import Conditions

    gradients, weights = (rules[rule.name] for rule in (GradientsEqual, WeightsEqual))
    assert isinstance(gradients, GradientsEqual)
    assert isinstance(weights, WeightsEqual)
    return Conditions(
        rows=gradients.rows,
        shares=gradients.shares,
        scale=gradients.scale,
        statistics_per_tower=gradients.statistics == "tower",
        steps=weights.steps,
        seconds=gradients.seconds,
    )


def _traced(pair: ProgramPair, batch: BatchFunction | None, conditions: Conditions) -> Trace:
    """Some steps of the towers, traced."""
    import numpy as np

    from placement_checks.run.tracing import trace_steps

    feeding = pair.feeding(batch, rows=conditions.rows, shares=conditions.shares)
    data = feeding.batch(np.random.default_rng(conditions.seed), feeding.rows)
    return trace_steps(pair.towers, feeding.to_towers(data), feeding.rows, conditions.seconds)
