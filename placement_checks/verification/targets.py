"""What a target names on the command line: a program or graph to place, or a placement log."""

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
    """The evidence of a target; a log is joined with ``graph``, the program that printed it.

    Where the placer fails, ``on_placer_error`` is called with the error and what the program asks
    for; it gives the evidence instead.
    """
    check_targets([target, graph])
    if is_log(target):
        return _of_log(target, settings, graph)
    if graph is not None:
        raise UsageError(
            "--graph", f"is for placement logs, and {target} is not one", "leave it out"
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
    """Check targets and a batch as far as that needs no TensorFlow.

    Raises:
        InputError: one of them does not exist, or is of an unknown kind.
    """
    for target in targets:
        if isinstance(target, Script):
            check_target(target.target)
        elif isinstance(target, str) and not is_log(target):
            check_target(target)
    if batch is not None:
        _check_batch(batch)


def _of_log(log_file: str, settings: Settings, graph: str | None) -> Evidence:
    if graph is None and settings.args:
        raise UsageError(
            f"-- {settings.args[0]}",
            f"is for a program, and {log_file} is a placement log",
            "name the program that printed it: --graph train.py",
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
    asked = placing.requested(program, gpus=_gpus(settings))
    return replace(asked, placement=log.placement(machine, asked.placement))


def _gpus(settings: Settings) -> int:
    return settings.gpus or 2


def _with_gpus_of_cluster(request: placing.Request) -> placing.Request:
    """The request, where nobody has said how many GPUs the tasks of a cluster have.

    Most programs of a cluster give each task one GPU. One that is told the number of GPUs has been
    told the default, and should use as many.
    """
    program = request.built.program
    is_told = (
        program.uses_gpus
        if isinstance(program, Script)
        else (isinstance(program, Program) and program.takes_num_gpus)
    )
    if is_told:
        return request
    devices = (op.requested for op in request.requested.ops.values())
    return replace(request, machine=request.machine.with_one_gpu_each(devices))


def _machine(settings: Settings) -> Machine | None:
    return Machine.parse(settings.machine, _gpus(settings)) if settings.machine else None


def _check_batch(batch: str) -> None:
    from placement_checks.run.feeding.batches import SUFFIX, Case

    if Path(batch).suffix == SUFFIX:
        Case.load(Path(batch))
    else:
        check_target(batch)
