"""What the iterators of a step give next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from placement_checks.core.op_types import OPTIONAL_VALUE, PIPELINE_OUTPUTS
from placement_checks.core.placement import producer_of
from placement_checks.loading.tf_internals.traced_functions import next_of


def next_elements(graph_def: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The next element of each iterator that a graph reads, by the names of the tensors.

    Where an iterator has no further element, nothing is known of it.

    Args:
        graph_def: a flat graph.
        arguments: the iterators among others, by the names of the placeholders of their resources.
    """
    found: dict[str, Any] = {}
    for node in graph_def.node:
        source = producer_of(node.input[0]) if node.input else ""
        if node.op in PIPELINE_OUTPUTS and source in arguments:
            values = _next(node, arguments[source])
            found |= dict(zip(_tensors(graph_def, node), values, strict=False))
    return found


def _next(node: Any, iterator: Any) -> list[Any]:
    """The next element of an iterator; empty at its end, and for what is no array."""
    dtypes = [tf.dtypes.as_dtype(number) for number in node.attr["output_types"].list.type]
    shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]
    try:
        with tf.init_scope(), tf.device(iterator.device):
            values = next_of(iterator, dtypes, shapes)
    except tf.errors.OpError:
        return []
    return [value.numpy() for value in values] if tf.variant not in dtypes else []


def _tensors(graph_def: Any, node: Any) -> Iterator[str]:
    """The tensors of an element: outputs of the op itself, or of the one that opens it."""
    count = len(node.attr["output_types"].list.type)
    openers = [
        each.name
        for each in graph_def.node
        if each.op == OPTIONAL_VALUE and producer_of(each.input[0]) == node.name
    ]
    for index in range(count):
        yield f"{openers[0] if openers else node.name}:{index}"
