"""What is known of single ops, looked up in a GraphDef and in the graph that it came from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from placement_checks.core.op_types import CONST
from placement_checks.core.placement import Body, Details, Frame, Tensor
from placement_checks.loading.origins import BodyOp, Origin

_LARGE_BYTES = 1024  # bytes; of larger constants the values are cut out before a graph is placed
_MAX_VALUES = 1 << 16  # of a constant: one value may stand for all of any shape
_MAX_DEPTH = 100  # functions within functions, of which the bodies are compared


class GraphDetails(Details):
    """The details of the ops of one graph.

    Args:
        graph_def: the graph.
        origin: where it came from.
        names: those of its nodes, in their order.

    Attributes:
        bodies: where each op is that is in the body of a function.
    """

    def __init__(self, graph_def: Any, origin: Origin, names: Sequence[str]) -> None:
        self._graph_def = graph_def
        self._origin = origin
        self._names = names
        self.bodies: dict[str, BodyOp] = {}
        self._digests: dict[str, str] = {}

    def frames(self, op: str) -> Sequence[Frame]:
        return self._origin.frames(op, self.bodies.get(op))

    def device_line(self, op: str) -> Frame | None:
        return self._origin.device_line(op, self.bodies.get(op))

    def outputs(self, op: str) -> Sequence[Tensor]:
        return self._origin.outputs(op, self.bodies.get(op))

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
        # The name of an op in a body is that of another graph.
        return "" if op in self.bodies else self._origin.forward_op(op)

    def parts_of_keras(self, op: str) -> Collection[str]:
        return self._origin.parts_of_keras(op, self.bodies.get(op))

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


def _comparable(value: Any) -> Any:
    """A value that equals itself, which NaN does not."""
    return "nan" if isinstance(value, float) and value != value else value


def _computing_attributes(node: Any) -> list[str]:
    """The attributes that say what a node computes; a dataset's metadata numbers it."""
    return sorted(key for key in node.attr if not key.startswith("_") and key != "metadata")


def _shape(shape: Any) -> tuple[int, ...] | str:
    return "unknown" if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
