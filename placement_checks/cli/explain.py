"""``placement-checks explain``.

What a user names of a program: an op, a variable or a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import click
from rich.console import Console

from placement_checks.cli.options import (
    FILE,
    RULE,
    ProgramCommand,
    call_settings,
    machine_options,
    program_options,
    source_overrides,
)
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.placement import Op, Placement, producer_of
from placement_checks.report.text import explain
from placement_checks.report.text.explain import explain_device, explain_op
from placement_checks.rules.examples import example
from placement_checks.rules.registry import RULES
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import join_and, nearest, printable
from placement_checks.verification import configuration
from placement_checks.verification.configuration import Settings
from placement_checks.verification.judging import verify
from placement_checks.verification.policy import rule_named
from placement_checks.verification.targets import gather

_OFFERED = 3  # names that are near


def object_named(placement: Placement, text: str) -> Op | Device:
    """The op or device of that name; ``w:0`` and ``^w`` are the op w.

    Raises:
        UsageError: there is none; the message offers the nearest names.
    """
    op = placement.ops.get(producer_of(text))
    if op is not None:
        return op
    device = _device(text)
    if device is None:
        near = " or ".join(map(repr, _nearest(producer_of(text), placement)))
        fix = f"did you mean {near}?" if near else "placement-checks place TARGET lists them"
        raise UsageError(repr(text), f"is no op or device of {placement.program}", fix)
    if not _is_known(placement, device):
        devices = placement.machine.devices if placement.machine else ()
        names = join_and(each.short for each in devices) or "none by name"
        raise UsageError(repr(text), f"is no device of {placement.program}", f"it has {names}")
    return device


def _device(text: str) -> Device | None:
    """What it says where it is written like a device: ``/gpu:1``, ``GPU:1``."""
    try:
        device = Device.parse(text)
    except InputError:
        return None
    return device if device.index is not None or device.job else None


def _is_known(placement: Placement, device: Device) -> bool:
    """Whether the machine has it, or an op asks for it."""
    if placement.machine is not None and placement.machine.has(device):
        return True
    requested = {op.requested for op in placement.ops.values()}
    return any(each and each.over(LOCALHOST).matches(device) for each in requested)


def _nearest(name: str, placement: Placement) -> list[str]:
    """The variables that end so or are spelled like it, else such ops, else the least unlike."""
    ops = list(placement.ops)
    for names in ([variable.name for variable in placement.variables], ops):
        ending = [other for other in names if other.endswith(f"/{name}")]
        spelled = get_close_matches(name, names, n=_OFFERED)
        if near := list(dict.fromkeys([*ending, *spelled])):
            return near[:_OFFERED]
    least_unlike = nearest(name, ops)
    return [least_unlike] if least_unlike else []


@click.command(
    "explain", cls=ProgramCommand, short_help="Explain a rule, or why something is where it is."
)
@click.argument("name", metavar="RULE|OBJECT", type=RULE)
@click.argument("target", required=False, type=FILE)
@machine_options
@program_options
def command(
    name: str,
    target: str | None,
    gpus: int | None,
    machine: str | None,
    soft: bool | None,
    v1: bool | None,
    let: tuple[str, ...],
    limit: float | None,
    args: tuple[str, ...],
) -> int:
    """Say what a rule means, or why an object of a program is where it is.

    RULE is one that `placement-checks rules` lists: what it means, its parameters, and a program
    that breaks it, with the mended one as a diff.

    OBJECT is an op, a variable or a device of TARGET, as a finding names it: which line asked for
    it and for which device, why it is where it is, who reads it, and what updates it.

    The exit status is 0, and 2 where there is no such rule or object, or anything failed.
    """
    call = call_settings(
        gpus, machine, soft, v1=v1, let=source_overrides(let), limit=limit, args=args
    )
    if target is None:
        _explain_rule(name, call)
        return 0
    settings = call.defaulting_to(configuration.load(Path.cwd()).settings)
    with stdout_for_report(), live():
        lines = _explained(name, target, settings)
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    return 0


def _explain_rule(name: str, call: Settings) -> None:
    """Print what a rule means.

    Raises:
        UsageError: it is none; what looks like an object needs a target.
    """
    is_object = name not in RULES and any(mark in name for mark in "/:_.")
    if is_object or call != Settings():
        raise UsageError(
            repr(name),
            "is no rule" if is_object else "is explained without a program",
            f"to explain an op or device, name its program: placement-checks explain {name} "
            "train.py:build",
        )
    text = rule_named(name).explanation()
    explain.write_rule(text, example(name), Console(file=sys.stdout))


def _explained(name: str, target: str, settings: Settings) -> Iterable[str]:
    """What is known of an object, as lines."""
    evidence = gather(target, settings)
    placement = evidence.placement
    try:
        found = object_named(placement, name)
    except UsageError:
        if name not in RULES:
            raise
        raise UsageError(
            repr(name), "is a rule", f"placement-checks verify {target} --rule {name}"
        ) from None
    verdicts = verify(evidence, [settings.policy]).verdicts
    if isinstance(found, Device):
        return list(explain_device(placement, found, verdicts))
    return list(explain_op(placement, found.name, verdicts))
