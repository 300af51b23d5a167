"""Gathers what rules look at: placements, and what running programs gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.machines import Machine, checked_gpus, local_gpus
from placement_checks.core.placement import FOLLOWERS, Placement
from placement_checks.core.program import Program
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.rules.runs.towers_overlap import TowersOverlap
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.util.garbage import left_alone
from placement_checks.verification.judging import rules_of
from placement_checks.verification.policy import Policy

if TYPE_CHECKING:
    import tensorflow as tf

    from placement_checks.core.program import Batch, BatchFunction
    from placement_checks.core.trace import Trace
    from placement_checks.loading.graph_reading import Source
    from placement_checks.run.measuring import Conditions
    from placement_checks.run.pair import Pair

    Target: TypeAlias = str | Program | Path | tf.Graph | Callable[..., object]


def place(
    target: Target,
    *,
    gpus: int = 2,
    machine: Machine | str | None = None,
    soft: bool | None = None,
    devices: str = "auto",
) -> Placement:
    """Where the ops of a program or graph are asked to be, and where the placer puts them.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or any of them
            as the command line names it (``train.py:build_towers``).
        gpus: how many GPUs the builder is asked for, and a host or worker has.
        machine: the devices, or their written form such as ``"worker*8: gpu*4"``; by default the
            smallest machine that the graph's device names need.
        soft: whether the placer may go elsewhere than asked; by default what the program's
            session configuration says, else not (TensorFlow 1's default).
        devices: ``auto`` asks the placer of this machine's GPUs where these are the devices,
            ``real`` asks no other, ``simulated`` never does.

    Raises:
        UsageError: the target or machine is none, or ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built, read or placed.
        PlacerError: the placer process died or hung.
    """
    return asked_on(target, gpus=gpus, machine=machine, soft=soft).placed(devices)


@dataclass(frozen=True)
class Asked:
    """What a program or graph asks for, and the machine that the placer is to put it on."""

    placement: Placement
    source: Source
    machine: Machine

    def placed(self, devices: str = "auto") -> Placement:
        """Where the placer puts the ops; as for `place`."""
        from placement_checks.placer.placing import place as place_on

        with left_alone():
            return place_on(self.placement, self.source, self.machine, devices)


def asked_on(
    target: Target,
    *,
    gpus: int = 2,
    machine: Machine | str | None = None,
    soft: bool | None = None,
) -> Asked:
    """What `place` asks the placer; the arguments are its."""
    checked_gpus(gpus)
    target = _checked(target)
    if isinstance(machine, str):
        machine = Machine.parse(machine)
    elif not isinstance(machine, Machine | None):
        raise UsageError(
            f"machine {machine!r:.60}",
            "is no machine",
            "write it like 'gpu*4' or 'worker*8: gpu*4'",
        )
    _start_early()
    if machine is not None:
        gpus = machine.towers
    asked, source = _asked(target, gpus)
    if soft is not None:
        asked = replace(asked, soft=soft)
    return Asked(asked, source, machine or Machine.smallest(_requested(asked), gpus))


def ask(target: Target, *, gpus: int = 2) -> Placement:
    """Where the ops of a program or graph are asked to be; no placer is asked.

    Args:
        target: as for `place`.
        gpus: how many GPUs the builder is asked for.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built or read.
    """
    asked, _ = _asked(_checked(target), checked_gpus(gpus))
    return asked


def _checked(target: Target) -> Target:
    """The target, of which nothing is known to be wrong; not even TensorFlow is loaded for that.

    Raises:
        InputError: it names nothing that can be loaded.
    """
    from placement_checks.loading.targets import check

    if isinstance(target, str | Path):
        check(target)
    return target


def _asked(target: Target, gpus: int) -> tuple[Placement, Source]:
    from placement_checks.loading import graph_files, graph_reading
    from placement_checks.loading.targets import resolve

    if isinstance(target, str):
        target = resolve(target)
    if isinstance(target, Path):
        return _graph(graph_files.load(target), "a saved graph cannot be built for one GPU")
    if hasattr(target, "as_graph_def"):
        source = graph_reading.of_live(target, "the graph")
        return _graph(source, "a graph cannot be built again for one GPU")
    return _program(target if isinstance(target, Program) else Program.of(target), gpus)


def _requested(placement: Placement) -> set[Device]:
    """The devices that a program asks for.

    An op that only follows a variable does not ask for a GPU, nor does one that computes nothing:
    under a device function both get the variable's job and the worker's GPU, which the parameter
    server need not have.
    """
    return {
        replace(op.requested, type=None, index=None)
        if op.requested.job and (op.type in FOLLOWERS or op.type == "NoOp")
        else op.requested
        for op in placement.ops.values()
    }


def _graph(source: Source, not_alone: str) -> tuple[Placement, Source]:
    from placement_checks.loading.graph_reading import requested

    return replace(requested(source), not_alone=not_alone), source


def _program(program: Program, gpus: int) -> tuple[Placement, Source]:
    from placement_checks.loading.building import build
    from placement_checks.loading.graph_reading import requested

    source, step = build(program, gpus)
    asked = replace(requested(source), soft=step.soft, policy=step.policy)
    if not program.takes_num_gpus:
        return replace(asked, not_alone="its builder takes no num_gpus"), source
    if gpus == 1:
        return replace(asked, not_alone="it was built for one GPU"), source
    try:
        alone, _ = build(program, 1)
        return replace(asked, alone=requested(alone)), source
    except InputError as error:
        return replace(asked, not_alone=f"built for one GPU, {error.message}"), source


def prepare(*, placer: bool = True) -> None:
    """Load TensorFlow, without its noise; ``placer`` starts the placer process beside it.

    Raises:
        InputError: TensorFlow is not installed, or does not load.
    """
    from placement_checks.util.streams import quiet_stderr

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if placer:
        _start_early()
    try:
        with quiet_stderr():
            import tensorflow  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(
            "tensorflow", f"cannot be imported: {error}", "pip install 'tensorflow>=2.15'"
        ) from None
    except Exception as error:  # whatever stands in its way, such as a TMPDIR that is read-only
        raise InputError(
            "tensorflow",
            f"cannot be imported: {type(error).__name__}: {error}",
            "see what python -c 'import tensorflow' says",
        ) from None


def _start_early() -> None:
    """Let the placer process load TensorFlow meanwhile, where no GPU here could answer instead."""
    from placement_checks.placer.worker.client import phantom

    if not local_gpus():
        phantom.start()


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
    placement = replace(placement, reference=ask(reference, gpus=1))
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
