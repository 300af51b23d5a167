"""Which of the scalars that a program reports are losses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import tensorflow as tf

from placement_checks.core.op_types import (
    ADDS,
    CAST,
    DIVISIONS,
    IDENTITIES,
    MEAN,
    PRODUCTS,
    STACK,
    SUM,
)
from placement_checks.core.placement import producer_of
from placement_checks.core.returned import Scalars
from placement_checks.loading.graph_reading import GraphSource
from placement_checks.loading.training_runs import made_of, trainable_variables

_COMBINES = ADDS | PRODUCTS | DIVISIONS | IDENTITIES | {CAST, MEAN, STACK, SUM}


def losses_among(reported: Scalars, source: GraphSource) -> Scalars:
    """Those that gradients have to do with; all of them where none are known to be taken.

    What gradients are taken of is made of them, or they are made of it, or of what is scaled and
    added up to it: a perplexity, of the loss before it was scaled. An accuracy, which may be that
    of one tower, is none.
    """
    names = {producer_of(name) for name in source.step_ops.objectives}
    if not names or source.live is None:
        return reported
    behind = _behind(map(source.live.get_operation_by_name, names))
    trainable = trainable_variables(source.live)
    learned = made_of([op for op in behind if op.name in trainable], behind)
    parts = set(_parts([op for op in behind if op.name in names], learned))
    backward = source.step_ops.backward or ()
    return Scalars(
        loss
        for loss in reported
        if loss.op in behind or not parts.isdisjoint(_behind([loss.op], backward))
    )


def _behind(ops: Iterable[tf.Operation], ends: Collection[str] = ()) -> set[tf.Operation]:
    """Some ops, and all whose values they are made of; not by way of those that ``ends`` names."""
    waiting = list(ops)
    seen = set(waiting)
    while waiting:
        op = waiting.pop()
        before = {tensor.op for tensor in op.inputs} - seen if op.name not in ends else set()
        seen |= before
        waiting += before
    return seen


def _parts(
    objectives: Iterable[tf.Operation], learned: Collection[tf.Operation]
) -> Iterator[tf.Operation]:
    """The scalars that are scaled and added up to the objectives, and those themselves.

    Of a product only what is made of trainable variables: the other factor, as one over the
    number of words, is also one of an accuracy.
    """
    waiting = list(objectives)
    seen = set(waiting)
    while waiting:
        op = waiting.pop()
        yield op
        if op.type not in _COMBINES:
            continue
        terms = {
            tensor.op
            for tensor in (op.inputs[:1] if op.type in DIVISIONS else op.inputs)
            if tensor.op in learned and (tensor.shape.rank == 0 or tensor.op.type == STACK)
        }
        waiting += terms - seen
        seen |= terms
