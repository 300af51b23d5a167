"""Layers: the layer of an op is the variable that is read last on the way to the op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from placement_checks.analysis.graph.backward import Backward
from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.op_types import (
    CAST,
    ENTERS,
    EXAMPLE_SOURCES,
    IDENTITIES,
    NOT_A_READ,
    PIPELINE_OPS,
    VARIABLE_READS,
    VARIABLES,
    is_dataset,
    is_update,
)

NONE = -1
_PASSES_READ = VARIABLE_READS | IDENTITIES | ENTERS | {CAST}


class Layers(NamedTuple):
    """The layer of each op.

    Attributes:
        by_op: for each op, the variable op that is read last on the way to it, or -1. A backward
            op has the layer of its forward op.
        passed_on: for each op, the variable op that it passes on unchanged, or -1. A variable op
            passes on itself.
        constant: for each op, whether it depends only on constants and random numbers.
        depth: for each variable, the number of ops from the inputs to its first read. The deepest
            variable is read last. Variables that no op combines with another value are left out.
    """

    by_op: Sequence[int]
    passed_on: Sequence[int]
    constant: Sequence[int]
    depth: Mapping[int, int]


class _Reads(NamedTuple):
    """What ops of one type do with their inputs.

    Attributes:
        is_variable: whether they are variables.
        is_source: whether examples come from them.
        passes_on: whether they pass on their only input.
        computes: whether they compute with the value of a variable, instead of only changing it.
    """

    is_variable: bool
    is_source: bool
    passes_on: bool
    computes: bool


def find_layers(flow: DataFlow, backward: Backward) -> Layers:
    """Find the layer of each op.

    Names and devices have no influence, so a refactor that moves or renames an op does not change
    its layer.
    """
    types = {
        kind: _Reads(
            kind in VARIABLES,
            kind in EXAMPLE_SOURCES or kind in PIPELINE_OPS or is_dataset(kind),
            kind in _PASSES_READ,
            not (is_update(kind) or kind in NOT_A_READ),
        )
        for kind in set(flow.types)
    }
    passed_on, by_op = [NONE] * len(flow.names), [NONE] * len(flow.names)
    constant, steps = bytearray(len(flow.names)), [0] * len(flow.names)
    depth: dict[int, int] = {}
    for op, (kind, sources) in enumerate(zip(flow.types, flow.inputs, strict=True)):
        reads = types[kind]
        if reads.is_variable:
            passed_on[op] = op
            continue
        layer, deepest, is_constant = NONE, 0, not reads.is_source
        variables = []
        for source in sources:
            if passed_on[source] != NONE:
                variables.append(passed_on[source])
                is_constant = False
                continue
            deepest = max(deepest, steps[source])
            is_constant = is_constant and bool(constant[source])
            layer = _deeper(layer, by_op[source], depth)
        steps[op] = deepest + 1
        if variables and len(sources) == 1 and reads.passes_on:
            passed_on[op] = variables[0]
            continue
        constant[op] = is_constant
        if reads.computes:
            for variable in variables:
                # Reads without other inputs, as in a penalty or an initializer, set no depth.
                if len(variables) < len(sources):
                    depth.setdefault(variable, steps[op])
                layer = _deeper(variable, layer, depth)
        by_op[op] = layer
    for op, (forward, _) in backward.forward.items():
        by_op[op] = by_op[forward] if passed_on[forward] == NONE else passed_on[forward]
    return Layers(by_op, passed_on, constant, depth)


def _deeper(one: int, other: int, depth: Mapping[int, int]) -> int:
    """Return the layer that is read later; the first if both have the same depth."""
    if one == NONE or other == NONE:
        return max(one, other)
    return other if depth.get(other, 0) > depth.get(one, 0) else one
