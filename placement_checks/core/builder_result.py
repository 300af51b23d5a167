"""What of a tuple that a builder returned is its step, and what the losses.

Ops and tensors are known by their attributes, so that TensorFlow need not be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from placement_checks.core.op_types import PLACEHOLDERS, VARIABLES, is_gradient_update, is_update

_NO_LOSS = PLACEHOLDERS | VARIABLES
_WITH_VARIABLES = ("variables", "local_variables")  # collections of a graph


class ScalarLosses(list[Any]):
    """The scalars of a tuple; which are losses shows what gradients are taken of."""


class Returned(NamedTuple):
    """The parts of a tuple that say something about the step.

    Attributes:
        train_ops: the step. That is every op that updates variables (one of those that it runs
            does so, and not as a variable's initialiser); if there is none, every tensor that
            runs an optimiser, as that of ``slim.learning.create_train_op`` does; if there is none
            either, every op that initialises nothing.
        losses: the other scalar tensors of floats, without placeholders and variables. Where the
            program takes gradients, those count that have to do with what it takes them of.
    """

    train_ops: list[Any]
    losses: ScalarLosses


def is_in_graph(value: object) -> bool:
    """Whether it is an op, a tensor or a variable of a graph."""
    return hasattr(value, "graph") and hasattr(value, "name")


def parse_builder_result(items: Iterable[object]) -> Returned | None:
    """What a tuple or list says, also with others in it; None if no op or tensor is there."""
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
    others = [item for item in found if id(item) not in steps]
    return Returned(train_ops, ScalarLosses(filter(_may_be_loss, others)))


def _flat(items: Iterable[object]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


def _op(item: Any) -> Any:
    """The op itself, or the one that a tensor or an assigned variable comes from."""
    return getattr(item, "op", item)


def _may_be_loss(item: Any) -> bool:
    is_float = getattr(getattr(item, "dtype", None), "is_floating", False)
    return is_float and item.shape.rank == 0 and _op(item).type not in _NO_LOSS


def _runs(op: Any, wanted: Callable[[str], bool], *, initial: bool = False) -> bool:
    """Whether one of the ops that ``op`` runs is wanted; of initialisers only if ``initial``."""
    initializers = frozenset() if initial else frozenset(_initializers(op.graph))
    seen, waiting = {op}, [op]
    while waiting:
        runs = waiting.pop()
        if wanted(runs.type) and runs.name not in initializers:
            return True
        before = {*runs.control_inputs, *(tensor.op for tensor in runs.inputs)} - seen
        seen |= before
        waiting += before
    return False


def _initializers(graph: Any) -> Iterator[str]:
    for collection in _WITH_VARIABLES:
        for variable in graph.get_collection(collection):
            if initializer := getattr(variable, "initializer", None):
                yield initializer.name
