"""Where a graph came from, and what that tells of its ops beyond the GraphDef.

The ``with tf.device(…)`` that decided which device an op asks for.
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
from placement_checks.graph.shape_inference import outputs_of
from placement_checks.tf.graphs import device_scopes, function_body, original_op

# How TensorFlow writes what a scope was given: a function, with where it is defined, …
_FUNCTION = re.compile(r"(?P<name>.+)<(?P<file>.*), (?P<line>\d+)>")
# … or a tf.DeviceSpec.
_SPEC = re.compile(
    r"<DeviceSpec\(job=(?P<job>\w+), replica=(?P<replica>\w+), task=(?P<task>\w+), "
    r"device_type=(?P<type>\w+), device_index=(?P<index>\w+)\)>"
)


class _Scope(NamedTuple):
    """One scope around an op.

    Attributes:
        line: where it was opened.
        device: what it names; false for a device function.
        function: where the device function is defined that it was given; None for a device.
        clears: whether it is ``tf.device(None)``, inside which no scope around it counts.
    """

    line: Frame
    device: Device
    function: Frame | None = None
    clears: bool = False


def deciding_line(op: Any, folder: Path | None) -> Frame | None:
    """The user's line that decided the device which an op of a live graph asks for.

    That of the innermost scope that names a type of device (a job, where the op asks for no more);
    where a device function inside it chose another, that of the function. None where the op asks
    for no device, or where a library decided.
    """
    asked = Device.parse(op.device)
    scopes = [_scope(each.obj, each.filename, each.lineno) for each in device_scopes(op)]
    decided = _deciding(scopes, asked) if asked else None
    for line in () if decided is None else (decided.function, decided.line):
        if line is not None and is_user_file(line.file, folder):
            return line._replace(file=relative_path(line.file))
    return None


def _deciding(scopes: Sequence[_Scope], asked: Device) -> _Scope | None:
    """The scope that decided, of those around an op, the innermost first."""
    functions = []
    for scope in scopes:
        if scope.clears:
            break
        if scope.function is not None:
            functions.append(scope)
        elif scope.device if asked.type is None else scope.device.type is not None:
            passed = asked.matches(scope.device)
            return scope if passed or not functions else functions[0]
    return functions[0] if functions else None


@lru_cache(maxsize=4096)
def _scope(given: str, file: str, line: int) -> _Scope:
    """A scope from what TensorFlow keeps of it: where it was opened, and with what, as text."""
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
    except InputError:  # a device function without a line of its own, such as a partial
        return _Scope(opened, Device(), opened)


_MAX_IMPORTED_OPS = 200_000  # ops of a file; a million would take 4 GB for their shapes


class BodyOp(NamedTuple):
    """An op in the body of a function: the function, and the op's name in there."""

    function: str
    name: str


class Origin:
    """Tells of an op what its node in a GraphDef does not have. This base class knows nothing.

    ``body`` is where the op is, if it is in the body of a function.
    """

    def frames(self, _op: str, _body: BodyOp | None) -> Sequence[Frame]:
        """The user's source lines that built the op, the outermost first."""
        return ()

    def device_line(self, _op: str, _body: BodyOp | None) -> Frame | None:
        """The user's line that decided the device which the op asks for."""
        return None

    def outputs(self, _op: str, _body: BodyOp | None) -> Sequence[Tensor]:
        """What the op yields; empty where that is not known."""
        return ()

    def forward_op(self, _op: str) -> str:
        """The op whose gradient a backward op computes; ``""`` where that is not known."""
        return ""

    def parts_of_keras(self, _op: str, _body: BodyOp | None) -> Collection[str]:
        """The parts of Keras that made the op, of `core.op_types`."""
        return ()


class LiveGraph(Origin):
    """A ``tf.Graph`` of this process.

    Args:
        graph: the graph.
        names: those of its ops, in their order.
        folder: where the user's source lines are; None for anywhere but in libraries.
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
        folder = current_folder()
        known = self._stacks.known(live.traceback, folder)
        if known.frames is None:
            known.frames = users_frames(known.stack, self._folder)
        return known.frames

    def device_line(self, op: str, body: BodyOp | None) -> Frame | None:
        live = self._op(op, body)
        return None if live is None else deciding_line(live, self._folder)

    def outputs(self, op: str, body: BodyOp | None) -> Sequence[Tensor]:
        live = self._op(op, body)
        if live is None:
            return ()
        return [
            Tensor(output.dtype.base_dtype.name, dims(output.shape)) for output in live.outputs
        ]

    def forward_op(self, op: str) -> str:
        live = self._op(op, None)
        original = None if live is None else original_op(live)
        return "" if original is None else str(original.name)

    def _op(self, op: str, body: BodyOp | None) -> Any:
        """The live op; None for one that Python has not traced."""
        try:
            return self._ops[op] if body is None else _in_body(self.graph, body)
        except (KeyError, ValueError):
            return None

    @cached_property
    def _ops(self) -> dict[str, tf.Operation]:
        """All at once is faster than one by one; a GraphDef has the order of its graph."""
        return dict(zip(self._names, self.graph.get_operations(), strict=False))


@dataclass(eq=False)
class _Stack:
    """Where ops were built.

    Attributes:
        stack: TensorFlow's.
        here: the folder that lines are told relative to.
        frames: the user's of it; None until they are looked for.
        next: the other stack that was asked for after it.
    """

    stack: Any
    here: str
    frames: Sequence[Frame] | None = None
    next: _Stack | None = None

    def is_of(self, stack: Any, here: str) -> bool:
        return bool(self.stack == stack) and self.here == here


class _Stacks:
    """The stacks of the ops that were asked for, each once.

    To look a stack up takes six times as long as to compare it with another. Towers, layers and
    their gradients are built in loops, so what has followed the last one often follows again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, str], _Stack] = {}
        self._last: _Stack | None = None

    def known(self, stack: Any, here: str) -> _Stack:
        """The one that is equal to a stack."""
        last = self._last
        if last is not None:
            for likely in (last.next, last):
                if likely is not None and likely.is_of(stack, here):
                    self._last = likely
                    return likely
        found = self._known.get((stack, here))
        if found is None:
            found = self._known[stack, here] = _Stack(stack, here)
        if last is not None:
            last.next = found
        self._last = found
        return found


class GraphFile(Origin):
    """A file: the outputs of its ops are inferred once, and only if a rule needs them."""

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
            return outputs_of(self._graph_def)
        except PlacerError as error:
            return error


@dataclass(frozen=True)
class Recorded(Origin):
    """A graph of another process, which has recorded what it knows of each op.

    Attributes:
        frames_of: the user's source lines that built an op.
        device_lines: the line that decided which device an op asks for.
        outputs_of: what an op yields.
        forward_ops: for a backward op the one whose gradient it computes.
        keras_parts: the parts of Keras that made an op, where any did.
    """

    frames_of: Mapping[str, Sequence[Frame]] = field(repr=False)
    device_lines: Mapping[str, Frame] = field(repr=False)
    outputs_of: Mapping[str, Sequence[Tensor]] = field(repr=False)
    forward_ops: Mapping[str, str] = field(repr=False)
    keras_parts: Mapping[str, Collection[str]] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(details: Details, ops: Iterable[str]) -> Recorded:
        """What the details of a live graph tell of some ops; what many have is kept once."""
        kept: dict[tuple[Any, ...], tuple[Any, ...]] = {}

        def once(value: Sequence[Any]) -> tuple[Any, ...]:
            return kept.setdefault(tuple(value), tuple(value))

        ops = tuple(ops)
        lines = {op: details.device_line(op) for op in ops}
        forward = {op: details.forward_op(op) for op in ops}
        keras = {op: once(sorted(details.parts_of_keras(op))) for op in ops}
        return Recorded(
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


def dims(shape: tf.TensorShape) -> tuple[int | None, ...] | None:
    """A static shape as numbers; None if its rank is not known.

    What a `TensorShape` yields one by one are objects that cannot be hashed once
    ``disable_v2_behavior`` was called.
    """
    return None if shape.rank is None else tuple(shape.as_list())


def _in_body(graph: tf.Graph, op: BodyOp) -> tf.Operation:
    """The op of a traced body; a FunctionDef may have added a number to its name.

    Raises:
        KeyError: there is no such op.
    """
    body = function_body(graph, op.function)
    if body is None:
        raise KeyError(op.function)
    try:
        return body.get_operation_by_name(op.name)
    except KeyError:
        return body.get_operation_by_name(re.sub(r"_\d+$", "", op.name))
