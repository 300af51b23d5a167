"""What a target names on the command line: a program or graph to place, or a placement log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from placement_checks.core.errors import UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import Machine
from placement_checks.loading.targets import GRAPH_SUFFIXES, check, kind_of
from placement_checks.logs import STDIN, read_logs
from placement_checks.util.progress import doing
from placement_checks.verification import gathering
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
    if not is_log(target) or (graph is not None and not is_log(graph)):
        gathering.prepare()
    if is_log(target):
        return _of_log(target, settings, graph)
    if graph is not None:
        raise UsageError(
            "--graph", f"is for placement logs, and {target} is not one", "leave it out"
        )
    gpus, machine = _gpus(settings), _machine(settings)
    request = gathering.request(target, gpus=gpus, machine=machine, soft=settings.soft)
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
    return is_other and kind_of(target) in ("file", "other")


def check_targets(targets: Iterable[str | None], batch: str | None = None) -> None:
    """Check targets and a batch as far as that needs no TensorFlow.

    Raises:
        InputError: one of them does not exist, or is of an unknown kind.
    """
    for target in targets:
        if target is not None and not is_log(target):
            check(target)
    if batch is not None:
        _check_batch(batch)


def _of_log(log_file: str, settings: Settings, graph: str | None) -> Evidence:
    machine = _machine(settings)
    if machine is None and settings.gpus is not None:
        machine = Machine.local(settings.gpus)
    with doing(f"reading {log_file}"):
        log = read_logs([log_file])
    if graph is None:
        return Evidence(log.placement(machine))
    program = gathering.requested(graph, gpus=_gpus(settings))
    return replace(program, placement=log.placement(machine, program.placement))


def _gpus(settings: Settings) -> int:
    return settings.gpus or 2


def _machine(settings: Settings) -> Machine | None:
    return Machine.parse(settings.machine, _gpus(settings)) if settings.machine else None


def _check_batch(batch: str) -> None:
    from placement_checks.loading.saved_case import SUFFIX, Case

    if Path(batch).suffix == SUFFIX:
        Case.load(Path(batch))
    else:
        check(batch)
