"""The options that the commands share for placing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.errors import UsageError
from placement_checks.core.gpus import checked_gpus
from placement_checks.core.machines import Machine
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
            help="Whether ops may go elsewhere than requested; default: as the program says.",
        ),
    ):
        command = option(command)
    return command


def call_settings(
    gpus: int | None, machine: str | None, soft: bool | None = None, **others: Any
) -> Settings:
    """What the options of a call say.

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
