"""Where two computations that should be the same differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.graph.analysis import GraphAnalysis
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    ADDS,
    CONST,
    CUTS,
    ENTERS,
    EXAMPLE_SOURCES,
    IDENTITIES,
    SCALES,
)
from placement_checks.core.placement import Body
from placement_checks.core.variables import Variable
from placement_checks.util.text import plural

# The first slice of a batch needs no begin, and the last slice no end.
_ENDS = frozenset({"begin_mask", "end_mask"})
# Attributes that do not change the result: seeds, names, and texts that are printed.
_IGNORED = frozenset(
    {
        *("seed", "seed2", "shape"),
        *("shared_name", "container", "debug_name", "frame_name", "var_name", "stack_name"),
        *("tensor_array_name", "message", "error_msg", "display_name", "description"),
    }
)
# `tf.py_function` gives each of its ops another token, even if they call the same function.
_TOKEN = "token"
# Ops that scale a whole result or pass it on.
_SCALES_OR_PASSES = SCALES | IDENTITIES
_SOURCES = EXAMPLE_SOURCES | ENTERS


class Difference(NamedTuple):
    """A difference between two computations that should be the same.

    Attributes:
        op: the op of the first computation.
        other: the op of the second computation.
        expected: a description of the first op.
        found: a description of the second op.
        path: the ops of the second computation from its end back to ``other``.
    """

    op: OpId
    other: OpId
    expected: str
    found: str
    path: Sequence[OpId]


def differences(
    graph: GraphAnalysis, one: Sequence[OpId], other: Sequence[OpId], shared: Collection[str]
) -> Iterator[Difference]:
    """Compare two computations op by op, from their ends back to variables and inputs.

    These are not differences:

    * Integers that do not depend on examples, and integer scalars, such as the first row of the
      slice of a tower.
    * Whether a slice states its begin and its end: the first slice of a tensor needs no begin, and
      the last slice needs no end.
    * A constant factor of the whole result, which weights towers with unequal batches, and a
      summand that depends on no example, such as a penalty on the weights.
    * The Python function that an op of `tf.py_function` calls.
    * Different variables of the same shape and dtype, unless both computations read both
      variables.

    Args:
        graph: the program.
        one: the last ops of the first computation.
        other: the last ops of the second computation.
        shared: the variables that both computations read.
    """
    flow = graph.flow
    variables = {variable.name: _describe(variable) for variable in graph.placement.variables}
    compared: set[tuple[OpId, OpId]] = set()
    todo: list[tuple[OpId, OpId, tuple[OpId, ...], bool]] = [
        (left, right, (right,), True) for left, right in zip(one, other, strict=False)
    ]
    for left, right, path, at_root in todo:
        if at_root:
            left, right = _without_penalties(graph, left), _without_penalties(graph, right)
            path = path if path[-1] == right else (*path, right)
        if left == right or (left, right) in compared:
            continue
        compared.add((left, right))
        different = _describe_difference(graph, left, right, variables, shared)
        if different:
            if _is_plain_integer(graph, left) and _is_plain_integer(graph, right):
                continue
            yield Difference(left, right, *different, path)
            continue
        kind = flow.types[left]
        if kind in _SOURCES:
            continue
        is_factor = at_root and kind in SCALES
        values = zip(flow.inputs[left], flow.inputs[right], strict=True)
        for a, b in [list(values)[CUTS[kind]]] if kind in CUTS else values:
            if is_factor and flow.types[a] == flow.types[b] == CONST:
                continue
            todo.append((a, b, (*path, b), at_root and kind in _SCALES_OR_PASSES))


def _without_penalties(graph: GraphAnalysis, loss: OpId) -> OpId:
    """Return the only summand of a loss that depends on examples, or else the loss itself."""
    while graph.flow.types[loss] in ADDS:
        terms = [term for term in graph.flow.inputs[loss] if graph.examples[term]]
        if len(terms) != 1 or len(graph.flow.inputs[loss]) == 1:
            break
        loss = terms[0]
    return loss


def _is_plain_integer(graph: GraphAnalysis, op: OpId) -> bool:
    """Whether an op yields integers that do not depend on examples, or an integer scalar."""
    outputs = graph.placement.details.outputs(graph.flow.names[op])
    return (
        len(outputs) == 1
        and outputs[0].dtype.startswith(("int", "uint"))
        and (not graph.examples[op] or outputs[0].shape == ())
    )


def _describe_difference(
    graph: GraphAnalysis,
    left: OpId,
    right: OpId,
    variables: Mapping[str, str],
    shared: Collection[str],
) -> tuple[str, str] | None:
    """Describe the difference between two ops, apart from their inputs; None if they are equal."""
    flow, details = graph.flow, graph.placement.details
    kind = flow.types[left]
    if kind != flow.types[right]:
        return kind, flow.types[right]
    left_name, right_name = flow.names[left], flow.names[right]
    if kind == CONST:
        value, other = details.value(left_name), details.value(right_name)
        if not value or not other or value == other or "float" not in value[0] + other[0]:
            return None
        return f"the constant {_text(value[2:])}", f"the constant {_text(other[2:])}"
    expected, found = details.attributes(left_name), details.attributes(right_name)
    for key in sorted((expected.keys() | found.keys()) - _IGNORED - {_TOKEN}):
        value, other = expected.get(key), found.get(key)
        # The bodies of functions are compared op by op.
        if value != other and not isinstance(value, Body) and not (kind in CUTS and key in _ENDS):
            at = f"{kind} with {key} "
            return at + _text(value), at + _text(other)
    if left in flow.variables and right in flow.variables:
        if left_name in shared and right_name in shared:
            return f"the variable {left_name}", f"the variable {right_name}"
        forms = variables[left_name], variables[right_name]
        return forms if forms[0] != forms[1] else None
    counts = len(flow.inputs[left]), len(flow.inputs[right])
    if counts[0] != counts[1]:
        return f"{kind} of {plural(counts[0], 'input')}", f"{kind} of {plural(counts[1], 'input')}"
    return None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, tuple):
        return _text(value[0]) if len(value) == 1 else str(value)[:60]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _describe(variable: Variable) -> str:
    shape = "any shape" if variable.shape is None else list(variable.shape)
    return f"a variable of {variable.dtype} {shape}"
