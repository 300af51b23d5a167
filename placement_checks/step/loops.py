"""Loops as terms: a loop is one op on its inputs, if its body treats rows alike.

Equal loops have equal inputs, and bodies that return equal terms of equal loop variables. How an
output depends on rows is a fixed point: the loop variables are assumed to depend on rows as the
inputs of the loop do. If the body gives a loop variable another kind, this kind is assumed, and
the body is read again.

A loop of TensorFlow 1 is a frame: ops that are connected in a cycle, by a ``Merge`` and a
``NextIteration`` for each loop variable.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from placement_checks.step.parts import WHOLE, Part, finest
from placement_checks.step.tensor_ops import with_shape

if TYPE_CHECKING:
    from placement_checks.step.graph import Frame, TensorReader
    from placement_checks.step.tensor_ops import Node

# Each round makes at least one loop variable depend on rows in another way.
_MAX_ROUNDS = 8


class Loop:
    """A loop of a graph.

    Args:
        node: the ``While`` op, or an op with a value after a loop of TensorFlow 1.
        identity: the attributes that decide what it computes, with digests of its functions.
        frame: the loop of TensorFlow 1; None for a ``While`` op.
    """

    def __init__(
        self, node: Node, identity: tuple[object, ...], frame: Frame | None = None
    ) -> None:
        self._node, self._identity, self._frame = node, identity, frame
        self._reader: TensorReader = node.reader
        self._terms = node.terms
        reader = self._reader
        if frame is None:
            self._initial = [node.operand(i) for i in range(len(node.inputs))]
            count = range(len(self._initial))
            self._variables: Sequence[str] = [
                f"{node.name}:{i}" if i else node.name for i in count
            ]
            returned = reader.placement.results[node.name]
            self._results, self._condition = returned["/body"], returned["/cond"][0]
            self._depth = reader.graph.depth(node.name)
        else:
            enters = [node._replace(name=each, output=0) for each in frame.enters]
            self._initial = [with_shape(each, reader.value(each.name)) for each in enters]
            self._variables, self._results = frame.merges, frame.returned
            self._condition = frame.condition
            self._depth = reader.graph.depth(frame.enters[0])
        captured = () if frame is None else frame.captured
        read = [*self._initial, *(reader.value(each) for each in captured)]
        parts = [self._terms.parts(each) for each in read]
        self._parts: frozenset[Part] = frozenset().union(*parts)
        self._part = finest(self._parts)
        self._returned: list[Form] = []

    def outputs(self) -> list[Form]:
        """The values of all loop variables after the loop."""
        statuses = self._fixed_point()
        node, terms = self._node, self._terms
        outputs = []
        operands = (*self._initial, *self._returned)
        for number, status in enumerate(statuses):
            name = self._variables[number]
            kept = status if self._part is not None else None
            if status.kind is Kind.UNKNOWN:
                cause = status.cause or Cause(
                    "While", "is a loop that cannot be followed", node.origin
                )
                shape = self._shape(number)
                outputs.append(terms.unknown(cause, shape, self._reader.program, name))
                continue
            outputs.append(
                terms.atom(
                    *("While", (*self._identity, number), operands, self._shape(number)),
                    origin=node.origin,
                    status=kept,
                )
            )
        return outputs

    def _shape(self, number: int) -> Shape:
        """The static shape of a loop variable; None for a list of tensors."""
        op, _, output = self._variables[number].partition(":")
        is_list = self._reader.dtype(op, int(output or 0)) == "variant"
        is_array = self._terms.shape(self._initial[number]) is None
        return None if is_list or is_array else self._reader.shape(op, int(output or 0))

    def _fixed_point(self) -> list[Status]:
        """How each loop variable depends on rows."""
        terms, part = self._terms, self._part
        if part is None and (self._parts or self._frame is None):
            cause = Cause("While", "combines rows of several towers", self._node.origin)
            kind = Kind.JOINT if self._frame is None else Kind.UNKNOWN
            status = Status(kind, None, cause) if self._parts else CONSTANT
            return [status] * len(self._initial)
        part = part or WHOLE
        statuses = [terms.status(each, part) for each in self._initial]
        name = self._node.name
        for _ in range(_MAX_ROUNDS):
            for number, status in enumerate(statuses):
                self._assume(number, status)
            results = [self._reader.read_in_loop(name, each) for each in self._results]
            found = [
                joined_status(status, terms.status(result, part))
                for status, result in zip(statuses, results, strict=True)
            ]
            condition = self._reader.read_in_loop(name, self._condition)
            self._returned = [*results, condition]
            if terms.status(condition, part).kind is not Kind.CONSTANT:
                cause = Cause(
                    "While",
                    "is a loop whose number of iterations depends on rows",
                    self._node.origin,
                )
                return [Status(Kind.JOINT, status.axis, cause) for status in found]
            if [status[:2] for status in found] == [status[:2] for status in statuses]:
                return found
            statuses = found
        cause = Cause("While", "is a loop that cannot be followed", self._node.origin)
        return [Status(Kind.UNKNOWN, None, cause)] * len(statuses)

    def _assume(self, number: int, status: Status) -> None:
        """Let the body read a loop variable that depends on rows in a given way."""
        node, terms, shape = self._node, self._terms, self._shape(number)
        if shape is not None and status.kind is Kind.ROWS and status.axis is not None:
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
        self._reader.assume_loop_variable(node.name, self._variables[number], form)


def is_loop(node: Node) -> bool:
    """Whether an op is a loop with known functions."""
    returned = node.reader.placement.results.get(node.name, {})
    return node.op.type in LOOPS and {"/body", "/cond"} <= returned.keys()
