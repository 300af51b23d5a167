"""``placement-checks explain``: a rule, or an op, variable or device of a program."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches

import click
from rich.console import Console

from placement_checks.cli.common.options import (
    FILE,
    GRAPH,
    RULE,
    ProgramCommand,
    settings_options,
    with_defaults,
)
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Op, Placement, producer_of
from placement_checks.core.settings import DEFAULTS, Settings
from placement_checks.report.text import explain
from placement_checks.rules.examples import example
from placement_checks.rules.registry import RULES
from placement_checks.targets.forms import parse_target
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import join_and, nearest, printable
from placement_checks.verification.judging import judge
from placement_checks.verification.placing import with_single_gpu
from placement_checks.verification.policy import rule_named
from placement_checks.verification.targets import gather

_SUGGESTIONS = 3  # at most


@click.command(
    "explain", cls=ProgramCommand, short_help="Explain a rule, or the device of an object."
)
@click.argument("name", metavar="RULE|OBJECT", type=RULE)
@click.argument("target", required=False, type=FILE)
@settings_options()
@GRAPH
def command(name: str, target: str | None, settings: Settings, graph: str | None) -> int:
    """Explain a rule, or the device of an object of a program.

    RULE is a name that `placement-checks rules` lists. The explanation has its condition, its
    parameters, and a program that breaks it, with the fix as a diff.

    OBJECT is an op, a variable or a device of TARGET, as in a finding. The explanation has the
    source line, the requested and the assigned device with the reason, and the ops that read and
    update the object.

    The exit status is 0, and 2 if the rule or object does not exist, or if an error occurred.
    """
    if target is None:
        if name not in RULES and any(mark in name for mark in "/:_."):
            raise UsageError(
                repr(name),
                "is not a rule",
                "to explain an op, variable or device, name its program: placement-checks explain "
                f"{name} train.py:build",
                is_predicate=True,
            )
        text = rule_named(name).explanation()
        if settings != DEFAULTS or graph is not None:
            raise UsageError(
                repr(name),
                "is a rule, and options of programs such as --gpus do not apply to a rule",
                "omit these options",
                is_predicate=True,
            )
        explain.write_rule(text, example(name), Console(file=sys.stdout))
        return 0
    with stdout_for_report(), live():
        lines = _object_lines(name, target, with_defaults(settings, target), graph)
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    return 0


def _object_lines(name: str, target: str, settings: Settings, graph: str | None) -> Iterable[str]:
    printed_by = None if graph is None else parse_target(graph)
    evidence = gather(parse_target(target), settings, printed_by, rows="none")
    placement = evidence.placement
    try:
        found = object_named(placement, name)
    except UsageError:
        if name not in RULES:
            raise
        raise UsageError(
            repr(name),
            f"is the name of a rule; {target} has no op, variable or device of that name",
            f"to check the rule: placement-checks verify {target} --rule {name}",
            is_predicate=True,
        ) from None
    if isinstance(found, Device) or found.type in VARIABLES:  # rules compare these with one GPU
        evidence = with_single_gpu(evidence)
    verdicts = judge(evidence).verdicts
    if isinstance(found, Device):
        return list(explain.explain_device(placement, found, verdicts))
    return list(explain.explain_op(placement, found.name, verdicts, evidence.single_gpu))


def object_named(placement: Placement, text: str) -> Op | Device:
    """The op or device with a name; ``w:0`` and ``^w`` name the op w.

    Raises:
        UsageError: there is no such op or device; the fix suggests similar names.
    """
    op = placement.ops.get(producer_of(text))
    if op is not None:
        return op
    try:
        device = Device.parse(text)
    except InputError:
        device = Device()
    if device.index is None and not device.job:
        names = " or ".join(map(repr, _similar_names(producer_of(text), placement)))
        fix = f"did you mean {names}?" if names else "placement-checks place TARGET lists them"
        raise UsageError(
            repr(text), f"is not an op or device of {placement.program}", fix, is_predicate=True
        )
    machine = placement.machine
    requested = {op.requested for op in placement.ops.values()}
    if (machine is not None and machine.has(device)) or any(
        each and each.over(LOCALHOST).matches(device) for each in requested
    ):
        return device
    known = join_and(each.short for each in (machine.devices if machine else ())) or "no devices"
    raise UsageError(
        repr(text), f"is not a device of {placement.program}", f"it has {known}", is_predicate=True
    )


def _similar_names(name: str, placement: Placement) -> list[str]:
    """Names that are similar or end alike: of variables, else of ops, else the nearest name."""
    ops = list(placement.ops)
    for names in ([variable.name for variable in placement.variables], ops):
        same_end = [other for other in names if other.endswith(f"/{name}")]
        similar = get_close_matches(name, names, n=_SUGGESTIONS)
        if found := list(dict.fromkeys([*same_end, *similar])):
            return found[:_SUGGESTIONS]
    closest = nearest(name, ops)
    return [closest] if closest else []
