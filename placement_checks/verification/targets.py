"""Collects the evidence of a target: a program or graph to place, or a placement log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import replace

from placement_checks.core.devices import Device
from placement_checks.core.errors import PlacementError, UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import Machine
from placement_checks.core.settings import Settings
from placement_checks.core.target import RowsToRead, SourceTree, Target
from placement_checks.logs import Log, read_logs
from placement_checks.rules.requirements import Need
from placement_checks.targets.forms import resolve, resolve_reference
from placement_checks.util.progress import step
from placement_checks.verification import placing
from placement_checks.verification.policy import NEEDS_REFERENCE

MOST_ANNOUNCED = 16  # programs with captures that may start early


def gather(
    target: Target,
    settings: Settings,
    graph: Target | None = None,
    *,
    for_one_gpu: bool = False,
    rows: RowsToRead = "all",
    tree: SourceTree | None = None,
    on_placer_error: Callable[[Exception, Evidence], Evidence] | None = None,
) -> Evidence:
    """Collect the evidence of a target.

    Args:
        target: a program, a graph or a placement log.
        settings: the settings of the call and the configuration.
        graph: the program that printed the log, or None.
        for_one_gpu: whether to build the program for one GPU too, for rules that use this build.
        rows: as `Script.rows`.
        tree: the copy of the repository whose code is run; None for the working tree.
        on_placer_error: called if the placer fails, with the error and the evidence of requested
            devices; its return value replaces the evidence.

    Raises:
        UsageError: a setting does not apply to the target.
        InputError: the target cannot be built, read or placed.
    """
    if target.kind == "log":
        return _gather_log(target, settings, graph, for_one_gpu=for_one_gpu)
    if graph is not None:
        raise UsageError(
            "--graph",
            f"is for placement logs, and {target.name} is not one",
            "omit it",
            is_predicate=True,
        )
    program = resolve(target, settings, tree=tree, rows=rows)
    placing.prepare()
    request = placing.request(program, settings, for_one_gpu=for_one_gpu)
    try:
        return request.placed()
    except Exception as fault:
        if on_placer_error is None:
            raise
        requested = replace(request.evidence.placement, machine=request.machine)
        return on_placer_error(fault, replace(request.evidence, placement=requested))


def announce(
    target: Target,
    settings: Settings,
    uses: Collection[Need],
    tree: SourceTree | None = None,
    *,
    rows: RowsToRead = "all",
) -> None:
    """Let the captures of a whole program, and of its reference, start early (`early_captures`).

    Errors are reported when the captures are needed.

    Args:
        target: the program.
        settings: its settings.
        uses: the evidence that will be used.
        tree: the copy of the repository whose code is run; None for the working tree.
        rows: as `Script.rows`; the same as for `gather`.
    """
    with contextlib.suppress(PlacementError):
        program = resolve(target, settings, tree=tree, rows=rows)
        reference = resolve_reference(settings)
        if not program.in_own_process and not (reference and reference.in_own_process):
            return
        machine = settings.parse_machine()
        gpus = machine.towers if machine else settings.gpus or 2
        placing.prepare()
        from placement_checks.capture.programs import expect, expect_reference

        expect(program, gpus, machine, expects_one_gpu=Need.SINGLE_GPU in uses)
        if reference is not None and not NEEDS_REFERENCE.isdisjoint(uses):
            expect_reference(reference, program)


def check_comparison(settings: Settings) -> None:
    """Check that the reference and the batch exist, without importing TensorFlow.

    Raises:
        InputError: the reference or the batch does not exist, or the saved case cannot be read.
    """
    resolve_reference(settings)
    if settings.batch is not None:
        from placement_checks.run.feeding.batches import parse_batch

        parse_batch(settings.batch)


def _gather_log(
    target: Target, settings: Settings, graph: Target | None, *, for_one_gpu: bool
) -> Evidence:
    """The evidence of a log, and of the program that printed it."""
    if graph is None and settings.args:
        raise UsageError(
            f"-- {settings.args[0]}",
            f"is for a program, but {target.name} is a placement log",
            "name the program that printed it: --graph train.py",
            is_predicate=True,
        )
    program = None if graph is None else resolve(graph, settings)
    if program is not None:
        placing.prepare()
    machine = settings.parse_machine()
    if machine is None and settings.gpus is not None:
        machine = Machine.local(settings.gpus)
    with step(f"reading {target.name}"):
        log = read_logs([target.path])
    if program is None:
        return Evidence(log.placement(machine), settings=settings)
    gpus = machine.towers if machine else _used_gpus(log)
    requested = placing.build(program, gpus, settings, for_one_gpu=for_one_gpu)
    return replace(requested, placement=log.placement(machine, requested.placement))


def _used_gpus(log: Log) -> int:
    """The number of GPUs that the ops of a log are on, in any task; at least 2."""
    devices = (Device.parse(name) for name in {record.device for record in log.counts} if name)
    return max([2, *(1 + (device.index or 0) for device in devices if device.is_gpu)])
