"""Whether two ops compute the same: structure by structure, whatever their names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.op_types import (
    CONST,
    CUTS,
    ENTERS,
    EXAMPLE_SOURCES,
    IDENTITIES,
    PASSES_HANDLE,
    PLACEHOLDERS,
    RANDOM_STATEFUL,
    SCALES,
    VARIABLE_LOOKUPS,
    VARIABLE_READS,
    VARIABLES,
)
from placement_checks.core.placement import Body, Placement, producer_of
from placement_checks.core.variables import Variable
from placement_checks.util.text import plural

# How a tower cuts its part: the first and the last part need no begin, or no end.
_ENDS = frozenset({"begin_mask", "end_mask"})
# Attributes that differ between ops without changing what they compute: their own random draws,
# the names of what they hold.
_OWN = frozenset(
    {"seed", "seed2", "shared_name", "container", "shape", "debug_name", "frame_name"}
)
# The whole of a loss is still within them.
_OF_WHOLE = SCALES | IDENTITIES
_SOURCES = EXAMPLE_SOURCES | ENTERS
_READS = VARIABLE_READS | VARIABLE_LOOKUPS | PASSES_HANDLE
_DEEPEST = 300  # ops in a row; no slice or seed is computed by longer chains


class Difference(NamedTuple):
    """Two ops at which two computations that should be the same differ; ``path`` leads there."""

    op: int
    other: int
    expected: str
    found: str
    path: Sequence[int]


def differences(
    placement: Placement,
    flow: DataFlow,
    examples: Sequence[int],
    one: Sequence[int],
    other: Sequence[int],
    shared: Collection[str] = (),
) -> Iterator[Difference]:
    """Where the computations of ``other`` differ from those of ``one``, op by op.

    Both are followed back until they meet, or reach variables or inputs. Not differences: integers
    that no example decides, or that are scalars, such as the first row of a tower's slice; whether
    a slice starts or ends where the sliced tensor does; a factor of the whole, by which unequal
    towers are weighted; and variables of one tower's own, unless they have another shape or dtype.

    Args:
        placement: the program.
        flow: its edges.
        examples: for each op whether its value depends on examples.
        one: the ops that the one computation ends with.
        other: those that the other ends with.
        shared: the variables that both read.
    """
    variables = {variable.name: _variable(variable) for variable in placement.variables}
    compared: set[tuple[int, int]] = set()
    todo: list[tuple[int, int, tuple[int, ...], bool]] = [
        (left, right, (right,), True) for left, right in zip(one, other, strict=False)
    ]
    for left, right, path, at_root in todo:
        if left == right or (left, right) in compared:
            continue
        compared.add((left, right))
        different = _different(placement, flow, left, right, variables, shared)
        if different:
            if all(_is_plain_integer(placement, flow, examples, op) for op in (left, right)):
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
            todo.append((a, b, (*path, b), at_root and kind in _OF_WHOLE))


def _is_plain_integer(
    placement: Placement, flow: DataFlow, examples: Sequence[int], op: int
) -> bool:
    """Whether an op yields integers that no example decides, or an integer scalar."""
    outputs = placement.details.outputs(flow.names[op])
    return (
        len(outputs) == 1
        and outputs[0].dtype.startswith(("int", "uint"))
        and (not examples[op] or outputs[0].shape == ())
    )


def _different(
    placement: Placement,
    flow: DataFlow,
    left: int,
    right: int,
    variables: Mapping[str, str],
    shared: Collection[str],
) -> tuple[str, str] | None:
    """What differs between two ops themselves, as text; None if nothing does."""
    kind = flow.types[left]
    if kind != flow.types[right]:
        return kind, flow.types[right]
    left_name, right_name = flow.names[left], flow.names[right]
    details = placement.details
    if kind == CONST:
        return _constants(details.value(left_name), details.value(right_name))
    expected, found = details.attributes(left_name), details.attributes(right_name)
    for key in sorted(expected.keys() | found.keys()):
        pair = expected.get(key), found.get(key)
        # Bodies of functions are compared op by op.
        if key in _OWN or (kind in CUTS and key in _ENDS):
            continue
        if pair[0] != pair[1] and not isinstance(pair[0], Body):
            at = f"{kind} with {key} "
            return at + _text(expected.get(key)), at + _text(found.get(key))
    if kind in VARIABLES:
        if left_name in shared and right_name in shared:
            return f"the variable {left_name}", f"the variable {right_name}"
        forms = variables[left_name], variables[right_name]
        return forms if forms[0] != forms[1] else None
    counts = len(flow.inputs[left]), len(flow.inputs[right])
    if counts[0] != counts[1]:
        return f"{kind} of {plural(counts[0], 'input')}", f"{kind} of {plural(counts[1], 'input')}"
    return None


def _constants(left: Any, right: Any) -> tuple[str, str] | None:
    if left is None or right is None or left == right or "float" not in left[0] + right[0]:
        return None
    return f"the constant {_text(left[2:])}", f"the constant {_text(right[2:])}"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, tuple):
        return _text(value[0]) if len(value) == 1 else str(value)[:60]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _variable(variable: Variable) -> str:
    shape = "any shape" if variable.shape is None else list(variable.shape)
    return f"a variable of {variable.dtype} {shape}"


class EqualTensors:
    """Tells tensors that are equal by construction: the same ops on the same sources.

    The copies that a strategy keeps of a variable are equal, too.

    Args:
        by_kind: whether two sources, such as readers of files, are the same if they were made
            alike; else every source is only equal to itself.
    """

    def __init__(self, placement: Placement, flow: DataFlow, *, by_kind: bool = False) -> None:
        self._placement = placement
        self._flow = flow
        self._by_kind = by_kind
        strategy = placement.strategy
        self._first_copy = {
            flow.number[name]: flow.number[copy.of]
            for name, copy in (strategy.copies.items() if strategy is not None else ())
            if copy.in_sync and name in flow.number and copy.of in flow.number
        }
        self._class_of: dict[int, int] = {}
        self._classes: dict[Any, int] = {}

    def of(self, source: str) -> tuple[int, str]:
        """A key that is the same for two inputs that are one tensor, or equal by construction."""
        output = source.partition(":")[2]
        return self._op(self._flow.number[producer_of(source)], _DEEPEST), output or "0"

    def _op(self, op: int, depth: int) -> int:
        op = self._first_copy.get(op, op)
        if op not in self._class_of:
            self._class_of[op] = -op - 1  # itself, should a loop lead back here
            key = self._key(op, depth)
            self._class_of[op] = self._classes.setdefault(key, op)
        return self._class_of[op]

    def _key(self, op: int, depth: int) -> Any:
        flow = self._flow
        name, kind = flow.names[op], flow.types[op]
        details = self._placement.details
        if kind == CONST:
            return details.value(name) or op
        if depth == 0:
            return op
        if flow.state_holder(op) == op or kind in _SOURCES or self._is_stateful(op):
            if not self._by_kind or kind in VARIABLES:
                return op
            made_of = [
                self._op(value, depth - 1)
                for _, written in flow.writers.get(op, ())
                for value in written
            ]
            if kind in PLACEHOLDERS:
                return op
            inputs = (self._op(source, depth - 1) for source in flow.inputs[op])
            return (kind, self._attributes(name), *made_of, *inputs)
        sources = [
            (
                self._op(flow.number[producer_of(source)], depth - 1),
                source.partition(":")[2] or "0",
            )
            for source in self._placement.ops[name].inputs
            if producer_of(source) in flow.number and not source.startswith("^")
        ]
        if not sources and not self._by_kind:
            return op
        return (kind, self._attributes(name), *sources)

    def _attributes(self, op: str) -> tuple[tuple[str, Any], ...]:
        attributes = self._placement.details.attributes(op)
        return tuple(sorted((key, value) for key, value in attributes.items() if key not in _OWN))

    def _is_stateful(self, op: int) -> bool:
        """Whether each run of the op, or each such op, yields something of its own."""
        kind, values = self._flow.types[op], self._flow.inputs[op]
        if kind in RANDOM_STATEFUL:
            return True
        return (
            bool(values) and self._flow.state_holder(values[0]) == values[0] and kind not in _READS
        )
