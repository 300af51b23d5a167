"""Collects the evidence of a target: a program or graph to place, or a placement log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from placement_checks.core.errors import UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import Machine
from placement_checks.core.program import Program, Target
from placement_checks.core.script import Script
from placement_checks.logs import STDIN, read_logs
from placement_checks.targets.names import GRAPH_SUFFIXES, check_target, file_kind
from placement_checks.util.progress import step
from placement_checks.verification import placing
from placement_checks.verification.configuration import Settings


def gather(
    target: str,
    settings: Settings,
    graph: str | None = None,
    *,
    on_placer_error: Callable[[Exception, Evidence], Evidence] | None = None,
) -> Evidence:
    """Collect the evidence of a target.

    Args:
        target: a program, a graph or a placement log, as on the command line.
        settings: the settings of the call and the configuration.
        graph: the program that printed the log, or None.
        on_placer_error: called if the placer fails, with the error and the evidence of requested
            devices; its return value replaces the evidence.

    Raises:
        UsageError: a setting does not apply to the target.
        InputError: the target does not exist, or cannot be built, read or placed.
    """
    check_targets([target, graph])
    if is_log(target):
        return _gather_log(target, settings, graph)
    if graph is not None:
        raise UsageError(
            "--graph",
            f"is for placement logs, and {target} is not one",
            "leave it out",
            is_predicate=True,
        )
    program = settings.script_of(target)
    placing.prepare()
    gpus, machine = _gpus(settings), _machine(settings)
    request = placing.request(program, gpus=gpus, machine=machine, soft=settings.soft)
    if settings.gpus is None and machine is None:
        request = _with_gpus_of_cluster(request)
    try:
        return request.placed()
    except Exception as fault:
        if on_placer_error is None:
            raise
        requested = replace(request.evidence.placement, machine=request.machine)
        return on_placer_error(fault, replace(request.evidence, placement=requested))


def is_log(target: str) -> bool:
    """Whether a target is a placement log: a file that is neither a program nor a graph."""
    if target == STDIN:
        return True
    is_other = Path(target).suffix not in (".py", *GRAPH_SUFFIXES)
    return is_other and file_kind(target) in ("file", "other")


def check_targets(targets: Iterable[Target | None], batch: str | None = None) -> None:
    """Check targets and a batch without importing TensorFlow.

    Raises:
        InputError: a target does not exist, or is of an unknown kind.
    """
    for target in targets:
        if isinstance(target, Script):
            check_target(target.target)
        elif isinstance(target, str) and not is_log(target):
            check_target(target)
    if batch is not None:
        from placement_checks.run.feeding.batches import SUFFIX, Case

        if Path(batch).suffix == SUFFIX:
            Case.load(Path(batch))
        else:
            check_target(batch)


def _gather_log(log_file: str, settings: Settings, graph: str | None) -> Evidence:
    """The evidence of a log, and of the program that printed it."""
    if graph is None and settings.args:
        raise UsageError(
            f"-- {settings.args[0]}",
            f"is for a program, but {log_file} is a placement log",
            "name the program that printed it: --graph train.py",
            is_predicate=True,
        )
    program = None if graph is None else settings.script_of(graph)
    if program is not None:
        placing.prepare()
    machine = _machine(settings)
    if machine is None and settings.gpus is not None:
        machine = Machine.local(settings.gpus)
    with step(f"reading {log_file}"):
        log = read_logs([log_file])
    if program is None:
        return Evidence(log.placement(machine))
    requested = placing.requested(program, gpus=_gpus(settings))
    return replace(requested, placement=log.placement(machine, requested.placement))


def _gpus(settings: Settings) -> int:
    return settings.gpus or 2


def _machine(settings: Settings) -> Machine | None:
    return Machine.parse(settings.machine, _gpus(settings)) if settings.machine else None


def _with_gpus_of_cluster(request: placing.Request) -> placing.Request:
    """The request with one GPU for each task, if the program has a fixed number of GPUs.

    Most programs for clusters use one GPU in each task. A program that gets the number of GPUs as
    an argument was built for the default number, and should use all of them.
    """
    program = request.built.program
    is_parametrized = (
        program.uses_gpus
        if isinstance(program, Script)
        else (isinstance(program, Program) and program.takes_num_gpus)
    )
    if is_parametrized:
        return request
    devices = (op.requested for op in request.requested.ops.values())
    return replace(request, machine=request.machine.with_one_gpu_each(devices))
