"""Findings of replicas-in-sync on collectives, the ops that sum or gather over replicas.

`unmet_sums` finds collectives that some replicas never join. `sums_without_key` finds collectives
without an instance key: in a function the key is a placeholder, which a call of the function
feeds, but a call in a branch of another function does not (TensorFlow's cross_device_utils.py,
``_next_instance_key``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.replicas import replicas
from placement_checks.core.keras_parts import FIT
from placement_checks.core.op_types import COLLECTIVE_GATHER, COLLECTIVE_REDUCE
from placement_checks.core.placement import Placement, Tensor, producer_of
from placement_checks.core.results import Finding
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import matches_any, requested_device
from placement_checks.rules.keras_limits import KERAS, keras_limit_finding, shorten
from placement_checks.util.text import join_and, plural

_COLLECTIVES = frozenset({COLLECTIVE_REDUCE, COLLECTIVE_GATHER})
_BY_HIERARCHY = "tf.distribute.{}(cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())"
_NO_KEY_CONSEQUENCE = (
    "the first step fails with InvalidArgumentError: You must feed a value for placeholder tensor"
)


def sums_without_key(
    placement: Placement, strategy: Strategy, allow: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding if sums over replicas have no key, in the first call of the step or in all.

    Args:
        placement: the program.
        strategy: the program's strategy.
        allow: names, or patterns of names, that are not reported.
    """
    created = [
        name
        for name in strategy.made_in_step
        if not strategy.is_later_copy(name) and not matches_any(name, allow)
    ]
    if created and any(analyze(placement).flow.having(_COLLECTIVES.__contains__)):
        yield _in_first_call(placement, strategy, created)
        return
    sums = [name for name in replicas(placement).sums_without_key if not matches_any(name, allow)]
    if sums:
        yield _in_loop(placement, strategy, sums)


def _in_first_call(placement: Placement, strategy: Strategy, created: Sequence[str]) -> Finding:
    """Report variables that the step creates.

    TensorFlow creates them in one branch, and runs the step in the other branch.
    """
    by_hierarchy = (
        "" if strategy.is_of_workers else f", or use {_BY_HIERARCHY.format(strategy.name)}"
    )
    return keras_limit_finding(
        placement,
        created,
        "the first step creates variables, so TensorFlow runs it in a branch, where the sums over "
        f"replicas have no instance key: {shorten(created)}",
        _NO_KEY_CONSEQUENCE,
        "create them under the scope before the first step: layers with model.build(...), slots "
        f"with optimizer.build(model.trainable_variables){by_hierarchy}",
        expected="variables that exist before the first step",
        found="variables that the first step creates",
        library="TensorFlow",
    )


def _in_loop(placement: Placement, strategy: Strategy, sums: Sequence[str]) -> Finding:
    in_fit = FIT in placement.details.parts_of_keras(sums[0])
    caller = f"fit of {KERAS}" if in_fit else "the program"
    single_steps = ", or steps_per_execution=1" if in_fit else ""
    return keras_limit_finding(
        placement,
        sums,
        f"{caller} runs several steps in one call, where the sums over replicas have no instance "
        f"key: {shorten(sums)}",
        _NO_KEY_CONSEQUENCE,
        f"use {_BY_HIERARCHY.format(strategy.name)}{single_steps}",
        expected="sums with an instance key",
        found="sums with a key placeholder that is never fed",
        library=KERAS if in_fit else "TensorFlow",
    )


class CollectiveGroup(NamedTuple):
    """Collectives that wait for each other, because they have the same keys.

    Attributes:
        size: the number of members that the group needs to run.
        members: the ops, in creation order.
        values: the input of each member; None if it is unknown.
    """

    size: int
    members: Sequence[str]
    values: Sequence[Tensor | None]

    @property
    def is_complete(self) -> bool:
        """Whether there are enough members, with inputs of one shape."""
        return len(self.members) == self.size and len(set(self.values)) == 1


def collective_groups(placement: Placement) -> Sequence[CollectiveGroup]:
    """Return the groups of collectives that have a known size and known keys."""
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for op in placement.ops.values():
        if op.type in _COLLECTIVES:
            # The inputs after the value are the group size, the group key and the instance key.
            keys = [placement.details.value(producer_of(source)) for source in op.inputs[1:4]]
            if None not in keys:
                groups[op.type, *((key or ())[-1] for key in keys)].append(op.name)
    return [
        CollectiveGroup(size, members, [_input_tensor(placement, name) for name in members])
        for (_, size, *_), members in groups.items()
    ]


def _input_tensor(placement: Placement, collective: str) -> Tensor | None:
    """Return the input of a collective; None if it is unknown."""
    producer, _, index = placement.ops[collective].inputs[0].partition(":")
    outputs = placement.details.outputs(producer)
    return outputs[int(index or 0)] if outputs else None


def unmet_sums(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """Yield findings on collectives that replicas do not join, or join with different shapes.

    The graph of a single worker of a cluster has no such findings, because other workers join its
    collectives.
    """
    if not strategy.is_whole:
        return
    for group in collective_groups(placement):
        if len(group.members) < group.size:
            yield _incomplete(placement, strategy, group)
        elif not group.is_complete:
            yield _unequal(placement, group)


def _incomplete(placement: Placement, strategy: Strategy, group: CollectiveGroup) -> Finding:
    name, *_ = group.members
    devices = [placement.ops[member].requested for member in group.members]
    absent = [
        replica
        for replica in strategy.replicas
        if not any(replica.matches(device) for device in devices)
    ]
    joining = join_and(dict.fromkeys(device.short for device in devices))
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected=plural(group.size, "replica"),
        found=str(len(group.members)),
        ops=tuple(group.members),
        message=f"{_noun(placement, name)} {name} waits for {plural(group.size, 'replica')}, "
        f"but only {joining} {'joins' if len(group.members) == 1 else 'join'} it"
        + (f", not {join_and(replica.short for replica in absent)}" if absent else ""),
        devices=(*devices, *absent),
        consequence="the step never ends",
        fix="run the same step in every worker; let only the chief process the result of the step",
        alike=("waits", tuple(devices)),
    )


def _unequal(placement: Placement, group: CollectiveGroup) -> Finding:
    name, *_ = group.members
    inputs = join_and(
        f"{_shape_text(value)} from {requested_device(placement.ops[member])}"
        for member, value in zip(group.members, group.values, strict=True)
    )
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected="one shape",
        found=inputs,
        ops=tuple(group.members),
        message=f"{_noun(placement, name)} {name} gets {inputs}",
        consequence="the step fails, or never ends",
        fix="build the same model in every worker",
        alike="other shapes",
        devices=tuple(placement.ops[member].requested for member in group.members),
    )


def _noun(placement: Placement, name: str) -> str:
    return "the sum" if placement.ops[name].type == COLLECTIVE_REDUCE else "the gather"


def _shape_text(value: Tensor | None) -> str:
    if value is None or value.shape is None:
        return "values of unknown shape"
    shape = ", ".join("?" if size is None else str(size) for size in value.shape)
    return f"{value.dtype} [{shape}]"
