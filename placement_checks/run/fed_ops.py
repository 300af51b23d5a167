"""Which ops of a program need not run, since what they yield is fed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.op_types import CONST, HAS_VALUE, OPTIONAL_ELEMENT
from placement_checks.core.placement import Placement, producer_of


def fed_ops(placement: Placement, fed: Collection[str]) -> frozenset[str]:
    """The ops of some tensors that are fed.

    Also the next element of an iterator that is fed where it is opened, and what asks whether
    there is one. A function waits for these in any case, as it waits for all that it does.
    """
    flow = analyse(placement).flow
    ops = {producer_of(tensor) for tensor in fed}
    for element in flow.having(OPTIONAL_ELEMENT.__eq__):
        takers = {flow.names[taker] for taker in flow.consumers[element]}
        asks = {name for name in takers if placement.ops[name].type == HAS_VALUE}
        if takers - asks and takers - asks <= ops:
            ops |= {flow.names[element], *asks}
    return frozenset(ops)


def cut_off(graph_def: Any, ops: Collection[str]) -> None:
    """Let nothing wait for ops whose values are fed, and iterators that are have a next element.

    TensorFlow runs an op that is fed if another waits for it by a control edge, unless it is a
    placeholder (core/graph/subgraph.cc), and a queue that nothing fills is waited for in vain.
    """
    waits = {f"^{op}" for op in ops}
    for node in graph_def.node:
        if node.op == HAS_VALUE and node.name in ops:
            _make_true(node)
        if not waits.isdisjoint(node.input):
            node.input[:] = [source for source in node.input if source not in waits]


def _make_true(node: Any) -> None:
    node.op = CONST
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = tf.bool.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(True))
