"""Findings on sums over replicas that some replicas never join.

Findings on sums over replicas in a branch, where nothing gives them a key.

In a function a key is a placeholder, which a call of the function feeds; a call in a branch of
another function does not (cross_device_utils.py, ``_next_instance_key``).

The collectives of a step: which run together, and which wait for others that never come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.replicas import replicas
from placement_checks.core.devices import Device
from placement_checks.core.keras_parts import FIT
from placement_checks.core.op_types import COLLECTIVE_GATHER, COLLECTIVE_REDUCE
from placement_checks.core.placement import Placement, Tensor, producer_of
from placement_checks.core.results import Finding
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import matches_any, requested_device
from placement_checks.rules.keras_limits import KERAS, keras_limit_finding, shorten
from placement_checks.util.text import join_and, plural

_KEYED = frozenset({COLLECTIVE_REDUCE, COLLECTIVE_GATHER})
_ENDS = "it ends as it begins: InvalidArgumentError, You must feed a value for placeholder tensor"


def sums_without_key(
    placement: Placement, strategy: Strategy, allow: Sequence[str]
) -> Iterator[Finding]:
    """That sums over replicas cannot run, in the first call of the step or in any.

    Args:
        placement: of the step.
        strategy: what it adds up for.
        allow: names, or patterns of them, of which nothing is said.
    """
    made = [
        name
        for name in strategy.made_in_step
        if not strategy.is_later_copy(name) and not matches_any(name, allow)
    ]
    if made and any(analyse(placement).flow.having(_KEYED.__contains__)):
        yield _in_first_call(placement, strategy, made)
        return
    sums = [name for name in replicas(placement).sums_without_key if not matches_any(name, allow)]
    if sums:
        yield _in_loop(placement, strategy, sums)


def _in_first_call(placement: Placement, strategy: Strategy, made: Sequence[str]) -> Finding:
    """TensorFlow makes the variables in one branch, and takes the step without in the other."""
    return keras_limit_finding(
        placement,
        made,
        "the first step makes variables, and TensorFlow takes it in a branch, where it gives the "
        f"sums over replicas no key: {shorten(made)}",
        _ENDS,
        "make them before, under the scope: layers with model.build(...), slots with "
        f"optimizer.build(model.trainable_variables){_other_sums(strategy)}",
        expected="variables that are there before the first step",
        found="variables that the first step makes",
        library="TensorFlow",
    )


def _in_loop(placement: Placement, strategy: Strategy, sums: Sequence[str]) -> Finding:
    in_fit = FIT in placement.details.parts_of_keras(sums[0])
    takes = f"fit of {KERAS} takes" if in_fit else "the program takes"
    other = ", or steps_per_execution=1" if in_fit else ""
    return keras_limit_finding(
        placement,
        sums,
        f"{takes} several steps in a call, and TensorFlow gives the sums over replicas in them no "
        f"key: {shorten(sums)}",
        _ENDS,
        f"{_BY_HIERARCHY.format(strategy.name)}{other}",
        expected="sums that run",
        found="sums whose key is a placeholder that nothing feeds",
        library=KERAS if in_fit else "TensorFlow",
    )


_BY_HIERARCHY = "tf.distribute.{}(cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())"


def _other_sums(strategy: Strategy) -> str:
    """Sums without keys, as an alternative, where a strategy lets its user choose them."""
    return "" if strategy.is_of_workers else f", or {_BY_HIERARCHY.format(strategy.name)}"


_KEYED_TYPES = {COLLECTIVE_REDUCE, COLLECTIVE_GATHER}  # the next inputs are the size and two keys


class CollectiveGroup(NamedTuple):
    """Collectives that wait for each other.

    Attributes:
        size: how many there must be.
        members: the ops, in the order of building.
        values: what each of them brings.
    """

    size: int
    members: Sequence[str]
    values: Sequence[Tensor | None]

    @property
    def is_complete(self) -> bool:
        """Whether all have come, and bring values of one shape."""
        return len(self.members) == self.size and len(set(self.values)) == 1


def collective_groups(placement: Placement) -> Sequence[CollectiveGroup]:
    """The collectives of a graph whose sizes and keys are known, those that meet together."""
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for op in placement.ops.values():
        if op.type in _KEYED_TYPES:
            keys = [placement.details.value(producer_of(source)) for source in op.inputs[1:4]]
            if None not in keys:
                groups[op.type, *((key or ())[-1] for key in keys)].append(op.name)
    return [
        CollectiveGroup(size, members, [_given(placement, name) for name in members])
        for (_, size, *_), members in groups.items()
    ]


def _given(placement: Placement, collective: str) -> Tensor | None:
    """What a collective is given; None where that is not known."""
    producer, _, index = placement.ops[collective].inputs[0].partition(":")
    outputs = placement.details.outputs(producer)
    return outputs[int(index or 0)] if outputs else None


def unmet_sums(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """A finding for each sum that waits for replicas which do not come, or brings other shapes.

    Nothing is told of a worker alone, whose sums the others join.
    """
    if not strategy.is_whole:
        return
    for meeting in collective_groups(placement):
        if len(meeting.members) < meeting.size:
            yield _waiting(placement, strategy, meeting)
        elif not meeting.is_complete:
            yield _unequal(placement, meeting)


def _waiting(placement: Placement, strategy: Strategy, meeting: CollectiveGroup) -> Finding:
    name, *_ = meeting.members
    devices = [placement.ops[member].requested for member in meeting.members]
    others = [device for device in strategy.replicas if not _among(device, devices)]
    come = join_and(dict.fromkeys(device.short for device in devices))
    left = join_and(device.short for device in others)
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected=plural(meeting.size, "replica"),
        found=str(len(meeting.members)),
        ops=tuple(meeting.members),
        message=f"{_what(placement, name)} {name} waits for {plural(meeting.size, 'replica')}, "
        f"and only {come} {'joins' if len(meeting.members) == 1 else 'join'} it"
        + (f", not {left}" if left else ""),
        consequence="the step never ends",
        fix="let every worker take the same step; what only the chief does, it does with the "
        "result",
        alike=("waits", tuple(devices)),
    )


def _unequal(placement: Placement, meeting: CollectiveGroup) -> Finding:
    name, *_ = meeting.members
    brought = [
        f"{_told(value)} from {requested_device(placement.ops[member])}"
        for member, value in zip(meeting.members, meeting.values, strict=True)
    ]
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected="one shape",
        found=join_and(brought),
        ops=tuple(meeting.members),
        message=f"{_what(placement, name)} {name} is given {join_and(brought)}",
        consequence="the step fails, or never ends",
        fix="build the same model in every worker",
        alike="other shapes",
    )


def _among(replica: Device, devices: list[Device]) -> bool:
    return any(replica.matches(device) for device in devices)


def _what(placement: Placement, name: str) -> str:
    return "the sum" if placement.ops[name].type == COLLECTIVE_REDUCE else "the gathering"


def _told(value: Tensor | None) -> str:
    if value is None or value.shape is None:
        return "values of unknown shape"
    shape = ", ".join("?" if size is None else str(size) for size in value.shape)
    return f"{value.dtype} [{shape}]"
