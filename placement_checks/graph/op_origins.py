"""Origins of graphs: they provide details of ops that a GraphDef does not contain.

`Origin` is the interface. `LiveGraph`, `GraphFile` and `RecordedOrigin` implement it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError, PlacerError
from placement_checks.core.placement import Details, Frame, Tensor
from placement_checks.core.user_code import (
    current_folder,
    is_user_file,
    relative_path,
    users_frames,
)
from placement_checks.graph.shape_inference import infer_outputs
from placement_checks.tf.graphs import device_scopes, function_body, original_op

_MAX_IMPORTED_OPS = 200_000  # ops of a file; shapes of a million ops would take 4 GB


class BodyOp(NamedTuple):
    """The function that contains an op, and the op's name in that function."""

    function: str
    name: str


class Origin:
    """The source of a graph: answers questions about ops that a GraphDef cannot answer.

    This base class answers none of them. The parameter ``body`` locates an op in the body of a
    function; it is None for an op of the graph itself.
    """

    def frames(self, _op: str, _body: BodyOp | None) -> Sequence[Frame]:
        """The user's source lines that built the op, the outermost first."""
        return ()

    def device_line(self, _op: str, _body: BodyOp | None) -> Frame | None:
        """The user's line that decided which device the op requests."""
        return None

    def outputs(self, _op: str, _body: BodyOp | None) -> Sequence[Tensor]:
        """The outputs of the op; empty if they are not known."""
        return ()

    def forward_op(self, _op: str) -> str:
        """The forward op of a backward op; ``""`` if it is not known."""
        return ""

    def parts_of_keras(self, _op: str, _body: BodyOp | None) -> Collection[str]:
        """The parts of Keras (`core.keras_parts`) that created the op."""
        return ()


class LiveGraph(Origin):
    """A ``tf.Graph`` of this process.

    Args:
        graph: the graph.
        names: the names of its ops, in graph order.
        folder: the directory of the user's source files; None if any file outside of libraries is
            the user's.
    """

    def __init__(self, graph: tf.Graph, names: Sequence[str], folder: Path | None) -> None:
        self.graph = graph
        self._names = names
        self._folder = folder
        self._stacks = _Stacks()

    def frames(self, op: str, body: BodyOp | None) -> Sequence[Frame]:
        live = self._op(op, body)
        if live is None:
            return ()
        cached = self._stacks.find(live.traceback, current_folder())
        if cached.frames is None:
            cached.frames = users_frames(cached.stack, self._folder)
        return cached.frames

    def device_line(self, op: str, body: BodyOp | None) -> Frame | None:
        live = self._op(op, body)
        return None if live is None else deciding_line(live, self._folder)

    def outputs(self, op: str, body: BodyOp | None) -> Sequence[Tensor]:
        live = self._op(op, body)
        if live is None:
            return ()
        return [
            Tensor(output.dtype.base_dtype.name, static_shape(output.shape))
            for output in live.outputs
        ]

    def forward_op(self, op: str) -> str:
        live = self._op(op, None)
        original = None if live is None else original_op(live)
        return "" if original is None else str(original.name)

    def _op(self, op: str, body: BodyOp | None) -> Any:
        """The live op; None if Python has not traced it."""
        try:
            return self._ops[op] if body is None else _op_in_body(self.graph, body)
        except (KeyError, ValueError):
            return None

    @cached_property
    def _ops(self) -> dict[str, tf.Operation]:
        # Faster than one lookup per op; a GraphDef has the order of its graph.
        return dict(zip(self._names, self.graph.get_operations(), strict=False))


@dataclass(eq=False)
class _Stack:
    """The stack of one or more ops.

    Attributes:
        stack: TensorFlow's stack.
        folder: the directory for relative paths.
        frames: the user's frames in it; None until they are looked up.
        next: the stack that was looked up after this one, the last time.
    """

    stack: Any
    folder: str
    frames: Sequence[Frame] | None = None
    next: _Stack | None = None


class _Stacks:
    """A cache of stacks.

    Looking up a stack takes six times as long as comparing it with another one. Programs build
    towers, layers and gradients in loops, so stacks often follow one another in the same order.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, str], _Stack] = {}
        self._last: _Stack | None = None

    def find(self, stack: Any, folder: str) -> _Stack:
        """The cached stack that equals ``stack``."""
        last = self._last
        if last is not None:
            for likely in (last.next, last):
                if likely is not None and likely.stack == stack and likely.folder == folder:
                    self._last = likely
                    return likely
        found = self._known.get((stack, folder))
        if found is None:
            found = self._known[stack, folder] = _Stack(stack, folder)
        if last is not None:
            last.next = found
        self._last = found
        return found


class GraphFile(Origin):
    """A saved graph. The outputs of its ops are inferred on first use, in another process."""

    def __init__(self, graph_def: Any) -> None:
        self._graph_def = graph_def

    def outputs(self, op: str, _body: BodyOp | None) -> Sequence[Tensor]:
        if isinstance(self._outputs, PlacerError):
            raise self._outputs
        return self._outputs.get(op, ())

    @cached_property
    def _outputs(self) -> Mapping[str, Sequence[Tensor]] | PlacerError:
        if len(self._graph_def.node) > _MAX_IMPORTED_OPS:
            return {}
        try:
            return infer_outputs(self._graph_def)
        except PlacerError as error:
            return error


@dataclass(frozen=True)
class RecordedOrigin(Origin):
    """A graph of another process, which recorded the answers for each op.

    Attributes:
        frames_of: the user's source lines that built an op.
        device_lines: the line that decided which device an op requests.
        outputs_of: the outputs of an op.
        forward_ops: the forward op of a backward op.
        keras_parts: the parts of Keras that created an op, if any.
    """

    frames_of: Mapping[str, Sequence[Frame]] = field(repr=False)
    device_lines: Mapping[str, Frame] = field(repr=False)
    outputs_of: Mapping[str, Sequence[Tensor]] = field(repr=False)
    forward_ops: Mapping[str, str] = field(repr=False)
    keras_parts: Mapping[str, Collection[str]] = field(default_factory=dict, repr=False)

    @staticmethod
    def from_details(details: Details, ops: Iterable[str]) -> RecordedOrigin:
        """Record the details of a live graph's ops; equal values are stored once."""
        shared: dict[tuple[Any, ...], tuple[Any, ...]] = {}

        def once(value: Sequence[Any]) -> tuple[Any, ...]:
            return shared.setdefault(tuple(value), tuple(value))

        ops = tuple(ops)
        lines = {op: details.device_line(op) for op in ops}
        forward = {op: details.forward_op(op) for op in ops}
        keras = {op: once(sorted(details.parts_of_keras(op))) for op in ops}
        return RecordedOrigin(
            {op: once(details.frames(op)) for op in ops},
            {op: line for op, line in lines.items() if line is not None},
            {op: once(details.outputs(op)) for op in ops},
            {op: original for op, original in forward.items() if original},
            {op: parts for op, parts in keras.items() if parts},
        )

    def frames(self, op: str, _body: BodyOp | None) -> Sequence[Frame]:
        return self.frames_of.get(op, ())

    def device_line(self, op: str, _body: BodyOp | None) -> Frame | None:
        return self.device_lines.get(op)

    def outputs(self, op: str, _body: BodyOp | None) -> Sequence[Tensor]:
        return self.outputs_of.get(op, ())

    def forward_op(self, op: str) -> str:
        return self.forward_ops.get(op, "")

    def parts_of_keras(self, op: str, _body: BodyOp | None) -> Collection[str]:
        return self.keras_parts.get(op, ())


def static_shape(shape: tf.TensorShape) -> tuple[int | None, ...] | None:
    """A static shape as numbers; None if its rank is not known.

    After ``disable_v2_behavior``, iterating over a `TensorShape` gives ``Dimension`` objects,
    which cannot be hashed.
    """
    return None if shape.rank is None else tuple(shape.as_list())


def _op_in_body(graph: tf.Graph, op: BodyOp) -> tf.Operation:
    """The op in a traced body; its name in the FunctionDef may have a number appended.

    Raises:
        KeyError: the body has no such op.
    """
    body = function_body(graph, op.function)
    if body is None:
        raise KeyError(op.function)
    try:
        return body.get_operation_by_name(op.name)
    except KeyError:
        return body.get_operation_by_name(re.sub(r"_\d+$", "", op.name))


# TensorFlow records the argument of a device scope as text. It writes a function with the line of
# its definition, …
_FUNCTION = re.compile(r"(?P<name>.+)<(?P<file>.*), (?P<line>\d+)>")
# … and a tf.DeviceSpec with all of its fields.
_SPEC = re.compile(
    r"<DeviceSpec\(job=(?P<job>\w+), replica=(?P<replica>\w+), task=(?P<task>\w+), "
    r"device_type=(?P<type>\w+), device_index=(?P<index>\w+)\)>"
)


def deciding_line(op: Any, folder: Path | None) -> Frame | None:
    """The user's line that decided which device an op of a live graph requests.

    Usually, this line opens the innermost scope that names a device type. If the op requests no
    type, the scope may name any part of a device, such as a job. If the op requests another device
    than that scope, a device function inside the scope decided: the line is its definition. None
    if the op requests no device, or if a library decided.
    """
    requested = Device.parse(op.device)
    scopes = [_scope(each.obj, each.filename, each.lineno) for each in device_scopes(op)]
    scope = _deciding_scope(scopes, requested) if requested else None
    for line in () if scope is None else (scope.function, scope.line):
        if line is not None and is_user_file(line.file, folder):
            return line._replace(file=relative_path(line.file))
    return None


class _Scope(NamedTuple):
    """One device scope around an op.

    Attributes:
        line: its ``with`` statement.
        device: the device that it names; an empty `Device` for a device function.
        function: the line that defines its device function; None if the scope names a device.
        clears: whether it is ``tf.device(None)``, which cancels the scopes around it.
    """

    line: Frame
    device: Device
    function: Frame | None = None
    clears: bool = False


def _deciding_scope(scopes: Sequence[_Scope], requested: Device) -> _Scope | None:
    """The scope that decided the requested device; ``scopes`` are ordered from the innermost."""
    functions = []
    for scope in scopes:
        if scope.clears:
            break
        if scope.function is not None:
            functions.append(scope)
        elif scope.device if requested.type is None else scope.device.type is not None:
            is_requested = requested.matches(scope.device)
            return scope if is_requested or not functions else functions[0]
    return functions[0] if functions else None


@lru_cache(maxsize=4096)
def _scope(given: str, file: str, line: int) -> _Scope:
    """Parse TensorFlow's record of a scope: its argument as text, and its file and line."""
    opened = Frame(file, line, "")
    if given == str(None):
        return _Scope(opened, Device(), clears=True)
    if function := _FUNCTION.fullmatch(given):
        defined = Frame(function["file"], int(function["line"]), function["name"])
        return _Scope(opened, Device(), defined)
    if spec := _SPEC.fullmatch(given):
        part = {
            key: None if value == str(None) else value for key, value in spec.groupdict().items()
        }
        given = "".join(f"/{key}:{part[key]}" for key in ("job", "replica", "task") if part[key])
        given += f"/device:{part['type']}:{part['index'] or '*'}" if part["type"] else ""
    try:
        return _Scope(opened, Device.parse(given))
    except InputError:  # a device function without a definition, such as a partial
        return _Scope(opened, Device(), opened)
