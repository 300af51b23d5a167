"""Loops as terms: a loop is one op on its inputs, if its body treats rows alike.

Equal loops have equal inputs, and bodies that return equal terms of equal loop variables. How an
output depends on rows is a fixed point: the loop variables are assumed to depend on rows as the
inputs of the loop do. If the body gives a loop variable another kind, this kind is assumed, and
the body is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement_checks.core.op_types import LOOPS
from placement_checks.step.kinds import (
    CONSTANT,
    ROWS,
    Cause,
    Form,
    Kind,
    Shape,
    Status,
    joined_status,
)
from placement_checks.step.parts import Part, finest

if TYPE_CHECKING:
    from placement_checks.step.graph import StepGraph
    from placement_checks.step.tensor_ops import Node

# Each round makes at least one loop variable depend on rows in another way.
_MAX_ROUNDS = 8


class Loop:
    """A ``While`` op of a graph.

    Args:
        node: the op.
        identity: the attributes that decide what it computes, with digests of its functions.
    """

    def __init__(self, node: Node, identity: tuple[object, ...]) -> None:
        self._node, self._identity = node, identity
        self._reader: StepGraph = node.reader
        self._terms = node.terms
        reader = self._reader
        self._initial = [reader.operand(node.name, i) for i in range(len(node.inputs))]
        parts = [self._terms.parts(each) for each in self._initial]
        self._parts: frozenset[Part] = frozenset().union(*parts)
        self._part = finest(self._parts)
        self._returned: list[Form] = []
        call = reader.ops[node.name].caller
        self._depth = 0  # the number of calls around the loop
        while call in reader.ops:
            call, self._depth = reader.ops[call].caller, self._depth + 1

    def outputs(self) -> list[Form]:
        """The values of all loop variables after the loop."""
        statuses = self._fixed_point()
        node, terms = self._node, self._terms
        outputs = []
        operands = (*self._initial, *self._returned)
        for number, status in enumerate(statuses):
            name = f"{node.name}:{number}" if number else node.name
            shape = self._reader.shape(node.name, number)
            if self._reader.dtype(node.name, number) == "variant":
                shape = None  # a list of tensors
            kept = status if self._part is not None else None
            if status.kind is Kind.UNKNOWN:
                cause = status.cause or Cause("While", "is a loop", node.origin)
                outputs.append(terms.unknown(cause, shape, self._reader.program, name))
                continue
            outputs.append(
                terms.atom(
                    *("While", (*self._identity, number), operands, shape),
                    origin=node.origin,
                    status=kept,
                )
            )
        return outputs

    def _fixed_point(self) -> list[Status]:
        """How each loop variable depends on rows."""
        terms, part = self._terms, self._part
        if part is None:
            cause = Cause("While", "combines rows of several towers", self._node.origin)
            status = Status(Kind.JOINT, None, cause) if self._parts else CONSTANT
            return [status] * len(self._initial)
        statuses = [terms.status(each, part) for each in self._initial]
        returned = self._reader.placement.results[self._node.name]
        for _ in range(_MAX_ROUNDS):
            for number, status in enumerate(statuses):
                self._assume(number, status)
            results = [
                self._reader.read_in_loop(self._node.name, each) for each in returned["/body"]
            ]
            found = [
                joined_status(status, terms.status(result, part))
                for status, result in zip(statuses, results, strict=True)
            ]
            condition = self._reader.read_in_loop(self._node.name, returned["/cond"][0])
            self._returned = [*results, condition]
            if terms.status(condition, part).kind is not Kind.CONSTANT:
                cause = Cause("While", "runs until rows end it", self._node.origin)
                return [Status(Kind.JOINT, status.axis, cause) for status in found]
            if [status[:2] for status in found] == [status[:2] for status in statuses]:
                return found
            statuses = found
        cause = Cause("While", "could not be followed", self._node.origin)
        return [Status(Kind.UNKNOWN, None, cause)] * len(statuses)

    def _assume(self, number: int, status: Status) -> None:
        """Let the body read a loop variable that depends on rows in a given way."""
        node, terms = self._node, self._terms
        name = f"{node.name}:{number}" if number else node.name
        reader = self._reader
        shape: Shape = reader.shape(node.name, number)
        is_list = reader.dtype(node.name, number) == "variant"
        if is_list:
            shape = None
        elif shape is not None and status.kind is Kind.ROWS and status.axis is not None:
            shape = (*shape[: status.axis], ROWS, *shape[status.axis + 1 :])
        has_rows = status.kind is not Kind.CONSTANT
        form = terms.atom(
            "LoopVariable",
            (self._depth, number, status.kind.name, status.axis),
            (),
            shape,
            part=self._part if has_rows else None,
            origin=node.origin,
            status=status,
        )
        reader.assume_loop_variable(node.name, name, form)


def is_loop(node: Node) -> bool:
    """Whether an op is a loop with known functions."""
    returned = node.reader.placement.results.get(node.name, {})
    return node.op.type in LOOPS and {"/body", "/cond"} <= returned.keys()
