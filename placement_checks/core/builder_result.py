"""Finds the step and the losses in a tuple that a builder returned.

Ops and tensors are recognized by their attributes, so that TensorFlow is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from placement_checks.core.op_types import PLACEHOLDERS, VARIABLES, is_gradient_update, is_update
from placement_checks.util.walks import walk

_NO_LOSS = PLACEHOLDERS | VARIABLES
_WITH_VARIABLES = ("variables", "local_variables")  # collections of a graph


class ScalarLosses(list[Any]):
    """The scalars of a tuple, before gradients show which of them are losses."""


class SeparateRuns(list[Any]):
    """The train ops of each run, if a program trains in several runs of a session, in turns."""


class Returned(NamedTuple):
    """The step and the losses of a tuple.

    Attributes:
        train_ops: the step: every op that updates variables, directly or through an op that it
            runs, except initializers. Without such an op, every tensor that runs an optimizer,
            such as the result of ``slim.learning.create_train_op``. Without such a tensor, every
            op that initializes nothing.
        losses: the remaining scalar float tensors, except placeholders and variables. If the
            program takes gradients, only scalars connected with their objectives are losses.
    """

    train_ops: list[Any]
    losses: ScalarLosses


def is_in_graph(value: object) -> bool:
    """Whether a value is an op, a tensor or a variable of a graph."""
    return hasattr(value, "graph") and hasattr(value, "name")


def parse_builder_result(items: Iterable[object]) -> Returned | None:
    """Parse a tuple or list, which may be nested; return None if it has no ops or tensors."""
    found = [item for item in _flat(items) if is_in_graph(item)]
    if not found:
        return None
    ops = [item for item in found if not hasattr(item, "dtype")]
    assigned = [item for item in found if hasattr(item, "dtype") and is_update(_op(item).type)]
    train_ops = (
        [item for item in [*ops, *assigned] if _runs(_op(item), is_update)]
        or [item for item in found if _runs(_op(item), is_gradient_update)]
        or [op for op in ops if not _runs(op, is_update, initial=True)]
    )
    steps = set(map(id, train_ops))
    losses = [
        item
        for item in found
        if id(item) not in steps
        and getattr(getattr(item, "dtype", None), "is_floating", False)
        and item.shape.rank == 0
        and _op(item).type not in _NO_LOSS
    ]
    return Returned(train_ops, ScalarLosses(losses))


def _flat(items: Iterable[object]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


def _op(item: Any) -> Any:
    """The op itself, or the op of a tensor or an assigned variable."""
    return getattr(item, "op", item)


def _runs(op: Any, wanted: Callable[[str], bool], *, initial: bool = False) -> bool:
    """Whether ``op`` runs an op of a wanted type; initializers count only if ``initial``."""
    initializers = frozenset() if initial else frozenset(_initializers(op.graph))

    def before(op: Any) -> Iterable[Any]:
        return [*op.control_inputs, *(tensor.op for tensor in op.inputs)]

    return any(wanted(each.type) and each.name not in initializers for each in walk([op], before))


def _initializers(graph: Any) -> Iterator[str]:
    for collection in _WITH_VARIABLES:
        for variable in graph.get_collection(collection):
            if initializer := getattr(variable, "initializer", None):
                yield initializer.name
