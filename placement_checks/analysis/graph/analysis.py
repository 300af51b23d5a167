"""The analysis of one graph: its backward pass, layers, losses, examples and updates.

The results do not depend on devices, or on the names of ops. One exception is the backward pass of
a saved graph, which is found by names.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.analysis.graph.updates import Updates
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    CAST,
    EMPTY_LIST,
    ENTERS,
    EXAMPLE_SOURCES,
    IDENTITIES,
    NOT_A_READ,
    PIPELINE_OPS,
    PLACEHOLDERS,
    RANDOM,
    VARIABLE_READS,
    is_dataset,
    is_update,
)
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement, Tensor

_PASSES_READ = VARIABLE_READS | IDENTITIES | ENTERS | {CAST}
_SCOPE = re.compile(r"(?:^|/)gradients(?:_\d+)?/")
_GRADIENT = re.compile(r"(?:^|.*/)gradients(?:_\d+)?/(.+)_grad/")


class GraphAnalysis:
    """The analysis of the graph of one placement.

    Attributes:
        placement: the program.
        flow: the edges of the program.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.flow = DataFlow(placement)

    @cached_property
    def backward(self) -> Backward:
        """The backward pass."""
        return Backward(self.placement, self.flow)

    @cached_property
    def layers(self) -> Layers:
        """The variable that is read last on the way to each op."""
        return find_layers(self.flow, self.backward)

    @cached_property
    def updates(self) -> Updates:
        """The updates of variables."""
        return Updates(self.placement, self.flow)

    @cached_property
    def loss_ops(self) -> Sequence[OpId]:
        """The ops that the program takes gradients of, or else the losses that it reports.

        If the gradients of a tensor are part of another loss, as in a gradient penalty or an inner
        loop of MAML, the tensor is not a loss itself and is left out.
        """
        step, flow = self.placement.step, self.flow
        gradients = {
            name: flow.known_ops(step.gradients.get(name, ()))
            for name in dict.fromkeys(step.objectives)
        }
        behind = flow.propagate(flow.marks(gradients.values()))
        inner = 0
        for bit, name in enumerate(gradients):
            for objective in flow.known_ops([name]):
                inner |= behind[objective] & ~(1 << bit)
        outer = [name for bit, name in enumerate(gradients) if not inner >> bit & 1]
        return list(dict.fromkeys(flow.known_ops(outer or step.objectives or step.losses)))

    @cached_property
    def examples(self) -> Sequence[int]:
        """For each op whether its value depends on examples.

        A placeholder for a scalar, such as a learning rate, holds no example.
        """
        flow = self.flow
        examples = [flow.number[name] for name in self.cached_inputs]
        for op in flow.having((EXAMPLE_SOURCES | RANDOM).__contains__):
            fed = self.tensor(flow.names[op]) if flow.types[op] in PLACEHOLDERS else None
            if fed is None or fed.shape != ():
                examples.append(op)
        return flow.propagate(flow.marks([examples]))

    @cached_property
    def cached_inputs(self) -> frozenset[str]:
        """The variables that hold examples: they are neither saved nor trained, nor scalar.

        Such a variable holds a dataset in memory, or batches that were read ahead.
        """
        placement = self.placement
        collected = placement.collected
        saved = collected.get(TRAINABLE, frozenset()) | collected.get(GLOBAL, frozenset())
        # Of the copies of a strategy's variable, only the first one is in a collection.
        if saved and placement.strategy is not None:
            saved |= placement.strategy.copies.keys()
        return frozenset(
            variable.name
            for variable in placement.variables
            if saved and variable.name not in saved and variable.shape
        )

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int | None, ...] | None]:
        """The static shape of each variable, by its name."""
        return {variable.name: variable.shape for variable in self.placement.variables}

    def tensor(self, name: str) -> Tensor | None:
        """Return the dtype and shape of a tensor, such as ``conv:1``; None if they are unknown."""
        op, _, output = name.partition(":")
        outputs = self.placement.details.outputs(op)
        number = int(output or 0)
        return outputs[number] if number < len(outputs) else None

    def draw_key(self, op: OpId) -> Hashable:
        """Return a key that stateful random ops share if they draw the same numbers."""
        name = self.flow.names[op]
        attributes = self.placement.details.attributes(name)
        seeds = attributes.get("seed", 0), attributes.get("seed2", 0)
        return (self.flow.types[op], *seeds) if any(seeds) else name

    @cached_property
    def in_model(self) -> Sequence[bool]:
        """For each op whether it is a forward op that depends on variables and examples."""
        return [
            layer is not None and bool(is_example) and not is_backward
            for layer, is_example, is_backward in zip(
                self.layers.by_op, self.examples, self.backward.ops, strict=True
            )
        ]


def is_local(placement: Placement, variable: str) -> bool:
    """Whether a variable is in no collection of a program that has collections."""
    collected = placement.collected.values()
    return any(collected) and not any(variable in names for names in collected)


class Backward:
    """The ops that compute gradients.

    Attributes:
        ops: for each op whether it is a backward op.
    """

    def __init__(self, placement: Placement, flow: DataFlow) -> None:
        self._placement = placement
        self._flow = flow
        backward = placement.step.backward
        self.ops = bytearray(
            [name in backward for name in flow.names]
            if backward is not None
            else ["gradients" in name and bool(_SCOPE.search(name)) for name in flow.names]
        )
        for number, caller in flow.callers.items():
            self.ops[number] |= self.ops[caller]
        # The backward pass of a loop passes these lists to the forward loop, which fills them
        # (python/ops/while_v2.py).
        for number in flow.having(EMPTY_LIST.__eq__):
            for op in (number, *flow.inputs[number]):
                self.ops[op] = False

    def numbers(self) -> Iterator[OpId]:
        """Yield the backward ops, in creation order."""
        return compress(self._flow.ops, self.ops)

    @cached_property
    def forward(self) -> Mapping[OpId, tuple[OpId, str]]:
        """The forward op of each backward op, and how it was found: by ``graph`` or ``name``.

        TensorFlow records the forward op while it builds the graph, and in ``_class`` if gradients
        are colocated (python/ops/gradients_util.py). In a saved graph without either record, the
        scope ``<forward op>_grad/`` names the forward op, which is in the same function body.
        """
        numbers, found = self._flow.number, {}
        for op in self.numbers():
            name = self._flow.names[op]
            colocated = (
                other
                for other in self._placement.ops[name].colocated
                if other in numbers and not self.ops[numbers[other]]
            )
            forward = self._placement.details.forward_op(name) or next(colocated, "")
            scope = None if forward else _GRADIENT.match(name)
            number = numbers.get(f"{self._body_prefix(name)}{scope[1]}" if scope else forward)
            if number is not None:
                found[op] = number, "name" if scope else "graph"
        return found

    def _body_prefix(self, op: str) -> str:
        """The prefix of the names of ops in the body that contains an op, or ``""``."""
        caller = self._placement.ops[op].caller
        prefixes = (f"{caller}{suffix}/" for suffix in self._placement.results.get(caller, ()))
        return next(filter(op.startswith, prefixes), "")


class Layers(NamedTuple):
    """The layer of each op.

    Attributes:
        by_op: for each op, the variable op that is read last on the way to it, or None. A
            backward op has the layer of its forward op.
        passed_on: for each op, the variable op that it passes on unchanged, or None. A variable
            op passes on itself.
        constant: for each op, whether it depends only on constants and random numbers.
        depth: for each variable, the number of ops from the inputs to its first read. The deepest
            variable is read last. Variables that no op combines with another value are left out.
    """

    by_op: Sequence[OpId | None]
    passed_on: Sequence[OpId | None]
    constant: Sequence[int]
    depth: Mapping[OpId, int]


class _Reads(NamedTuple):
    """What ops of one type do with their inputs.

    Attributes:
        is_source: whether the ops yield examples.
        passes_on: whether the ops pass on their only input.
        computes: whether the ops compute with the value of a variable, instead of only changing
            the variable.
    """

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
            kind in EXAMPLE_SOURCES or kind in PIPELINE_OPS or is_dataset(kind),
            kind in _PASSES_READ,
            not (is_update(kind) or kind in NOT_A_READ),
        )
        for kind in set(flow.types)
    }
    passed_on: list[OpId | None] = [None] * len(flow.names)
    by_op: list[OpId | None] = [None] * len(flow.names)
    constant, steps = bytearray(len(flow.names)), [0] * len(flow.names)
    depth: dict[OpId, int] = {}

    def deeper(one: OpId | None, other: OpId | None) -> OpId | None:
        if one is None or other is None:
            return other if one is None else one
        return other if depth.get(other, 0) > depth.get(one, 0) else one

    for op, kind, sources in zip(flow.ops, flow.types, flow.inputs, strict=True):
        reads = types[kind]
        if op in flow.variables:
            passed_on[op] = op
            continue
        layer: OpId | None = None
        deepest, is_constant = 0, not reads.is_source
        variables = []
        for source in sources:
            variable = passed_on[source]
            if variable is not None:
                variables.append(variable)
                is_constant = False
                continue
            deepest = max(deepest, steps[source])
            is_constant = is_constant and bool(constant[source])
            layer = deeper(layer, by_op[source])
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
                layer = deeper(variable, layer)
        by_op[op] = layer
    for op, (forward, _) in backward.forward.items():
        by_op[op] = by_op[forward] if passed_on[forward] is None else passed_on[forward]
    return Layers(by_op, passed_on, constant, depth)
