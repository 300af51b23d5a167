"""What is known of single ops, looked up in a GraphDef and in the graph that it came from."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tensorflow as tf

from placement_checks.core.errors import PlacerError
from placement_checks.core.op_types import CONST
from placement_checks.core.placement import Body, Details, Frame, Tensor
from placement_checks.loading.shapes import outputs_of
from placement_checks.loading.source_lines import users_frames
from placement_checks.loading.tf_internals import function_body, original_op

_MAX_IMPORTED_OPS = 200_000  # ops of a file; a million would take 4 GB for their shapes
_LARGE_BYTES = 1024  # bytes; of larger constants the values are cut out before a graph is placed
_MAX_VALUES = 1 << 16  # of a constant: one value may stand for all of any shape
_MAX_DEPTH = 100  # functions within functions, of which the bodies are compared


class GraphDetails(Details):
    """The details of the ops of one graph.

    Args:
        graph_def: the graph.
        live: the ``tf.Graph`` it came from; None for a file.
        folder: where the user's source lines are; None for anywhere but in libraries.
        names: those of its nodes, in their order.

    Attributes:
        bodies: for every op in the body of a function, the function and its name in there.
    """

    def __init__(
        self, graph_def: Any, live: tf.Graph | None, folder: Path | None, names: Sequence[str]
    ) -> None:
        self._graph_def = graph_def
        self._names = names
        self._live = live
        self._folder = folder
        self.bodies: dict[str, tuple[str, str]] = {}
        self._digests: dict[str, str] = {}

    def frames(self, op: str) -> Sequence[Frame]:
        live = self._op(op)
        return () if live is None else users_frames(live.traceback, self._folder)

    def outputs(self, op: str) -> Sequence[Tensor]:
        if self._live is None:
            if isinstance(self._outputs, PlacerError):
                raise self._outputs
            return self._outputs.get(op, ())
        live = self._op(op)
        if live is None:
            return ()
        return [
            Tensor(output.dtype.base_dtype.name, dims(output.shape)) for output in live.outputs
        ]

    def attributes(self, op: str) -> Mapping[str, Any]:
        node = self._node(op)
        if node is None:
            return {}
        plain = {key: self._plain(node.attr[key], 0) for key in _computing_attributes(node)}
        return {key: value for key, value in plain.items() if value is not None}

    def _plain(self, value: Any, depth: int) -> Any:
        """An attribute as numbers, texts, tuples and bodies; None for tensors."""
        kind = value.WhichOneof("value")
        if kind in ("i", "f", "b", "s", "type"):
            return _comparable(getattr(value, kind))
        if kind == "shape":
            return _shape(value.shape)
        if kind == "func":
            return Body(self._digest(value.func.name, depth))
        if kind == "list" and not value.list.func and not value.list.tensor:
            listed = value.list
            plain = (listed.i, listed.f, listed.b, listed.s, listed.type)
            return tuple(item for values in plain for item in values) or tuple(
                _shape(shape) for shape in listed.shape
            )
        return None

    def _digest(self, function: str, depth: int) -> str:
        """A digest that functions with the same body share, whatever their names."""
        if depth == _MAX_DEPTH:
            return function
        if function not in self._digests:
            self._digests[function] = function  # itself, should it call itself
            digest = hashlib.sha256()
            nodes = self._functions.get(function, {})
            place = {name: str(number) for number, name in enumerate(nodes)}
            for node in nodes.values():
                parts = (source.partition(":") for source in node.input)
                inputs = [(place.get(name, name), output) for name, _, output in parts]
                digest.update(f"{node.op} {inputs}".encode())
                for key in _computing_attributes(node):
                    attribute = self._plain(node.attr[key], depth + 1)
                    tensor = node.attr[key].tensor.SerializeToString(deterministic=True)
                    digest.update(f"{key} {attribute} {tensor!r}".encode())
            self._digests[function] = digest.hexdigest()
        return self._digests[function]

    def value(self, op: str) -> tuple[Any, ...] | None:
        node = self._node(op)
        if node is None or node.op != CONST:
            return None
        tensor = node.attr["value"].tensor
        bare = type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
        if tensor.ByteSize() > _LARGE_BYTES or tensor == bare:
            return None
        if not 0 <= math.prod(dim.size for dim in tensor.tensor_shape.dim) <= _MAX_VALUES:
            return None
        try:
            array = tf.make_ndarray(tensor)
        except (TypeError, ValueError):  # a dtype without arrays, or values that miss its shape
            return None
        return (array.dtype.name, array.shape, *map(_comparable, array.ravel().tolist()))

    def forward_op(self, op: str) -> str:
        if op in self.bodies:
            return ""  # the name is that of another graph
        live = self._op(op)
        original = None if live is None else original_op(live)
        return "" if original is None else str(original.name)

    @cached_property
    def _live_ops(self) -> dict[str, tf.Operation]:
        """All at once is faster than one by one; a GraphDef has the order of its graph."""
        assert self._live is not None
        return dict(zip(self._names, self._live.get_operations(), strict=False))

    @cached_property
    def _nodes(self) -> dict[str, Any]:
        return dict(zip(self._names, self._graph_def.node, strict=True))

    @cached_property
    def _functions(self) -> dict[str, dict[str, Any]]:
        return {
            function.signature.name: {node.name: node for node in function.node_def}
            for function in self._graph_def.library.function
        }

    def _node(self, op: str) -> Any:
        if op in self.bodies:
            function, inner = self.bodies[op]
            return self._functions[function][inner]
        return self._nodes.get(op)

    @cached_property
    def _outputs(self) -> Mapping[str, Sequence[Tensor]] | PlacerError:
        """The outputs of the ops of a file, inferred once, and only if a rule needs them."""
        if len(self._graph_def.node) > _MAX_IMPORTED_OPS:
            return {}
        try:
            return outputs_of(self._graph_def)
        except PlacerError as error:
            return error

    def _op(self, op: str) -> Any:
        """The live op; None for one that Python has not traced."""
        if self._live is None:
            return None
        try:
            if op in self.bodies:
                return _in_body(self._live, *self.bodies[op])
            return self._live_ops[op]
        except (KeyError, ValueError):
            return None


def _in_body(graph: tf.Graph, function: str, name: str) -> tf.Operation:
    """The op of a traced body; a FunctionDef may have added a number to its name.

    Raises:
        KeyError: there is no such op.
    """
    body = function_body(graph, function)
    if body is None:
        raise KeyError(function)
    try:
        return body.get_operation_by_name(name)
    except KeyError:
        return body.get_operation_by_name(re.sub(r"_\d+$", "", name))


def _comparable(value: Any) -> Any:
    """A value that equals itself, which NaN does not."""
    return "nan" if isinstance(value, float) and value != value else value


def _computing_attributes(node: Any) -> list[str]:
    """The attributes that say what a node computes; a dataset's metadata numbers it."""
    return sorted(key for key in node.attr if not key.startswith("_") and key != "metadata")


def dims(shape: tf.TensorShape) -> tuple[int | None, ...] | None:
    """A static shape as numbers; None if its rank is not known.

    What a `TensorShape` yields one by one are objects that cannot be hashed once
    ``disable_v2_behavior`` was called.
    """
    return None if shape.rank is None else tuple(shape.as_list())


def _shape(shape: Any) -> tuple[int, ...] | str:
    return "unknown" if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
