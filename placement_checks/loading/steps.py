"""What a program says about its step, as names of ops and tensors of its graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import tensorflow as tf
from google.protobuf import json_format
from google.protobuf.message import Message

from placement_checks.core.errors import InputError
from placement_checks.core.placement import StepOps, producer_of
from placement_checks.core.program import Step
from placement_checks.core.returned import Scalars
from placement_checks.loading.graph_reading import GraphSource
from placement_checks.loading.reported_losses import losses_among


def step_ops(step: Step, source: GraphSource) -> StepOps:
    """What is known of a training step: what the graph shows, and what the program says.

    Raises:
        InputError: the program names an op that is not in its graph, or not an op at all.
    """
    names = partial(_names, source, {node.name for node in source.graph_def.node})
    return source.step_ops._replace(
        train_op=tuple(names("train_op", step.train_op)),
        losses=tuple(names("loss", _losses(step.loss, source))),
        inputs=tuple(
            tuple(names("inputs", list(inputs.values())))
            for inputs in (
                [step.inputs] if isinstance(step.inputs, Mapping) else step.inputs or ()
            )
            if isinstance(inputs, Mapping)
        ),
        session=_session(step.config),
    )


def _losses(returned: Any, source: GraphSource) -> Any:
    """What the program calls its loss; of a tuple's scalars those that are losses."""
    return losses_among(returned, source) if isinstance(returned, Scalars) else returned


def _names(source: GraphSource, in_graph: Collection[str], key: str, value: Any) -> Iterator[str]:
    """The names of the ops and tensors in what a program says under a key."""
    if value is None:
        return
    if isinstance(value, list | tuple):
        for item in value:
            yield from _names(source, in_graph, key, item)
        return
    named = value
    if isinstance(value, tf.Variable):  # also what an assignment yields, by its own op
        named = getattr(value, "op", None)
    elif parts := components(value):
        yield from _names(source, in_graph, key, parts)
        return
    name = named if isinstance(named, str) else getattr(named, "name", None)
    foreign = getattr(named, "graph", source.live) is not source.live
    if foreign or not isinstance(name, str) or producer_of(name) not in in_graph:
        raise InputError(
            source.program,
            f"its {key} is {value!r:.80}, which is not an op of the graph it built",
            "return the ops and tensors themselves",
        )
    yield name


def components(value: Any) -> list[Any]:
    """The tensors of what is made of several, such as a sparse placeholder; else none."""
    if tf.nest.is_nested(value):
        return []
    parts: list[Any] = tf.nest.flatten(value, expand_composites=True)
    return [] if any(part is value for part in parts) else parts


def _session(config: Any) -> Mapping[str, Any] | None:
    """A session configuration as nested mappings, fields that are not set left out."""
    if isinstance(config, Message):
        return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))
    return config if isinstance(config, Mapping) else None
