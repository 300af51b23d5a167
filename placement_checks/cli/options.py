"""What the commands that take targets share: the options of the machine, and capturing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.errors import UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.gpus import checked_gpus
from placement_checks.core.machines import Machine
from placement_checks.loading.targets import GRAPH_SUFFIXES, check, kind_of
from placement_checks.logs import STDIN, read_logs
from placement_checks.verification import gathering
from placement_checks.verification.configuration import Settings


def machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --gpus, --machine and --soft/--strict."""
    for option in (
        click.option("--gpus", type=int, metavar="N", help="GPUs of the host or of each worker."),
        click.option(
            "--machine",
            metavar="M",
            help='Devices, such as "gpu*4" or "ps*2; worker*8: gpu*4", or TF_CONFIG.',
        ),
        click.option(
            "--soft/--strict",
            "soft",
            default=None,
            help="Whether the placer may go elsewhere than asked; default: as the program says.",
        ),
    ):
        command = option(command)
    return command


def asked_machine(
    gpus: int | None, machine: str | None, soft: bool | None = None, **others: Any
) -> Settings:
    """The settings of the call.

    Raises:
        UsageError: both a machine and a number of GPUs, or one that makes no sense.
    """
    if gpus is not None and machine is not None and machine.strip() != TF_CONFIG:
        raise UsageError("--gpus and --machine", "say the same thing twice", "give one of them")
    if gpus is not None:
        checked_gpus(gpus)
    if machine is not None:
        Machine.parse(machine)
    return Settings(gpus, machine, soft, **others)


def is_log(target: str) -> bool:
    """Whether a target is a placement log: a file that is no program and no graph."""
    if target == STDIN:
        return True
    is_other = Path(target).suffix not in (".py", *GRAPH_SUFFIXES)
    return is_other and kind_of(target) in ("file", "other")


def check_all(targets: Iterable[str | None], batch: str | None = None) -> None:
    """Say what is wrong with targets and a batch as far as it shows without TensorFlow.

    Raises:
        InputError: one of them is not there, or of no kind that is known.
    """
    for target in targets:
        if target is not None and not is_log(target):
            check(target)
    if batch is not None:
        _check_batch(batch)


def _check_batch(batch: str) -> None:
    from placement_checks.loading.saved_case import SUFFIX, Case

    if Path(batch).suffix == SUFFIX:
        Case.load(Path(batch))
    else:
        check(batch)


def captured(
    target: str,
    settings: Settings,
    graph: str | None = None,
    *,
    unplaced: Callable[[Exception, Evidence], Evidence] | None = None,
) -> Evidence:
    """What is known of a target; a log is joined with ``graph``, the program it is of.

    Where the placer fails, ``unplaced`` is called with what the program asks for.
    """
    check_all([target, graph])
    if not is_log(target) or (graph is not None and not is_log(graph)):
        gathering.prepare()
    gpus = settings.gpus or 2
    machine = Machine.parse(settings.machine, gpus) if settings.machine else None
    if not is_log(target):
        if graph is not None:
            raise UsageError(
                "--graph", f"is for placement logs, and {target} is none", "leave it out"
            )
        request = gathering.request(target, gpus=gpus, machine=machine, soft=settings.soft)
        try:
            return request.placed()
        except Exception as fault:
            if unplaced is None:
                raise
            asked = replace(request.evidence.placement, machine=request.machine)
            return unplaced(fault, replace(request.evidence, placement=asked))
    if machine is None and settings.gpus is not None:
        machine = Machine.local(settings.gpus)
    log = read_logs([target])
    if graph is None:
        return Evidence(log.placement(machine))
    program = gathering.requested(graph, gpus=gpus)
    return replace(program, placement=log.placement(machine, program.placement))
