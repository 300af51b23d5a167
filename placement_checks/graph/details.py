"""Details of the ops of a graph: from a graph of this process, a file, or another process."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.core import limits
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError, PlacerError
from placement_checks.core.frames import Frame
from placement_checks.core.op_types import CONST
from placement_checks.core.placement import Body, Details, Tensor
from placement_checks.core.user_code import (
    current_folder,
    is_user_file,
    relative_path,
    users_frames,
)
from placement_checks.graph.graph_def import MAX_VALUE_BYTES, without_values
from placement_checks.graph.inlining import FunctionOp, function_library, inlined_functions
from placement_checks.graph.shape_inference import infer_outputs
from placement_checks.tf.graphs import device_scopes, function_body, original_op

_GRADIENT = "_gradient_op_type"  # the attribute that replaces the gradient of an op's type
_NUMBER = re.compile(r"_\d+$")
_MAX_COMPARED_DEPTH = 100  # nested functions; deeper bodies are compared by name


class GraphDetails(Details):
    """Details that the GraphDef contains: attributes and constants.

    Attributes:
        graph_def: the graph.
        bodies: the functions that contain inlined ops, by the op's name in the placement.
            `graph.reading` fills it.
    """

    def __init__(self, graph_def: Any) -> None:
        self.graph_def = graph_def
        self.bodies: dict[str, FunctionOp] = {}
        self._digests: dict[str, str] = {}  # of functions
        self._constant_digests: dict[str, str] = {}

    def attributes(self, op: str) -> Mapping[str, Any]:
        node = self._node(op)
        if node is None:
            return {}
        plain = {key: self._plain(node.attr[key], 0) for key in _computing_attributes(node)}
        return {key: value for key, value in plain.items() if value is not None}

    def value(self, op: str) -> tuple[Any, ...] | None:
        node = self._node(op)
        if node is None or node.op != CONST:
            return None
        tensor = node.attr["value"].tensor
        if tensor.ByteSize() > MAX_VALUE_BYTES or tensor == without_values(tensor):
            return None
        # A single stored value may fill any shape.
        elements = math.prod(dim.size for dim in tensor.tensor_shape.dim)
        if not 0 <= elements <= limits.CONSTANT_ELEMENTS.most:
            return None
        try:
            array = tf.make_ndarray(tensor)
        except (TypeError, ValueError):  # a dtype without arrays, or values that do not fit
            return None
        return (array.dtype.name, array.shape, *map(_comparable, array.ravel().tolist()))

    def digest(self, op: str) -> str:
        node = self._node(op)
        if node is None or node.op != CONST:
            return ""
        if op not in self._constant_digests:
            self._constant_digests[op] = _digest_of_constant(node.attr["value"].tensor)
        return self._constant_digests[op]

    def custom_gradient(self, op: str) -> str:
        node = self._node(op)
        if node is None or _GRADIENT not in node.attr:
            return ""
        return str(node.attr[_GRADIENT].s.decode(errors="replace"))

    def _plain(self, value: Any, depth: int) -> Any:
        """Convert an attribute to numbers, texts, tuples and bodies; None for tensors."""
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
        """A digest of a function's body; functions with equal bodies have the same digest."""
        if depth == _MAX_COMPARED_DEPTH:
            return function
        if function not in self._digests:
            self._digests[function] = function  # for recursive calls
            digest = hashlib.sha256()
            signature = self._library.get(function)
            nodes = () if signature is None else signature.node_def
            # Names of arguments and nodes may contain the name of a tower.
            numbers = {node.name: str(number) for number, node in enumerate(nodes)}
            if signature is not None:
                arguments = signature.signature.input_arg
                numbers |= {each.name: f"argument {i}" for i, each in enumerate(arguments)}

            def numbered(source: str) -> str:
                control = "^" if source.startswith("^") else ""
                name, _, output = source.removeprefix("^").partition(":")
                return f"{control}{numbers.get(name, name)}:{output}"

            for node in nodes:
                digest.update(f"{node.op} {[*map(numbered, node.input)]}".encode())
                for key in _computing_attributes(node):
                    attribute = self._plain(node.attr[key], depth + 1)
                    tensor = node.attr[key].tensor.SerializeToString(deterministic=True)
                    digest.update(f"{key} {attribute} {tensor!r}".encode())
            if signature is not None:
                results = [signature.ret[each.name] for each in signature.signature.output_arg]
                digest.update(f"{[*map(numbered, results)]}".encode())
            self._digests[function] = digest.hexdigest()
        return self._digests[function]

    @cached_property
    def _library(self) -> Mapping[str, Any]:
        return function_library(self.graph_def)

    @cached_property
    def _functions(self) -> dict[str, dict[str, Any]]:
        """The nodes of the graph and its functions, as in `FunctionOp`."""
        functions = {name: each.node_def for name, each in self._library.items()}
        return {
            function: {node.name: node for node in nodes}
            for function, nodes in {**functions, "": self.graph_def.node}.items()
        }

    def _name_in_body(self, op: str, other: str) -> str:
        """The name of another op of the same function as ``op``; outside of functions its own."""
        return op.removesuffix(self._address(op).name) + other

    def _address(self, op: str) -> FunctionOp:
        return self.bodies.get(op) or FunctionOp("", op)

    def _node(self, op: str) -> Any:
        function, name = self.bodies.get(op) or ("", op)
        return self._functions[function].get(name)


def _digest_of_constant(tensor: Any) -> str:
    """A digest of the dtype, shape and elements of a constant; ``""`` without elements."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    elements = math.prod(shape)
    if elements and tensor == without_values(tensor):
        return ""
    if elements <= limits.CONSTANT_ELEMENTS.most:
        try:
            array = tf.make_ndarray(tensor)
        except (TypeError, ValueError):  # as for `GraphDetails.value`
            return ""
        content = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
    else:  # a single stored value may fill any shape
        content = tensor.SerializeToString(deterministic=True)
    return hashlib.sha256(f"{tensor.dtype} {shape} ".encode() + content).hexdigest()


def _comparable(value: Any) -> Any:
    """Replace NaN, which does not equal itself."""
    return "nan" if isinstance(value, float) and value != value else value


def _computing_attributes(node: Any) -> list[str]:
    """The attributes that affect a node's result; ``metadata`` only numbers a dataset."""
    return sorted(key for key in node.attr if not key.startswith("_") and key != "metadata")


def _shape(shape: Any) -> tuple[int, ...] | str:
    return "unknown" if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


class GraphFile(GraphDetails):
    """A saved graph. The outputs of its ops are inferred on first use, in another process."""

    def outputs(self, op: str) -> Sequence[Tensor]:
        if isinstance(self._outputs, PlacerError):
            raise self._outputs
        return self._outputs.get(op, ())

    @cached_property
    def _outputs(self) -> Mapping[str, Sequence[Tensor]] | PlacerError:
        if len(self.graph_def.node) > limits.INFERRED_OPS.most:
            return {}
        try:
            return infer_outputs(self.graph_def)
        except PlacerError as error:
            return error


class LiveDetails(GraphDetails):
    """Details of ops that Python has built in this process.

    ``folder`` is the directory of the program, as for `core.user_code.is_user_file`.
    """

    def __init__(self, graph_def: Any, folder: Path | None) -> None:
        super().__init__(graph_def)
        self._folder = folder
        self._cache = _FrameCache(folder)
        self._ops: dict[str, Mapping[str, Any]] = {}  # by function

    def frames(self, op: str) -> Sequence[Frame]:
        stack = self._stack(op)
        if stack is None:
            return ()
        return self._cache.frames(stack)

    def device_line(self, op: str) -> Frame | None:
        live = self._live_op(op)
        return None if live is None else deciding_line(live, self._folder)

    def outputs(self, op: str) -> Sequence[Tensor]:
        live = self._live_op(op)
        if live is None:
            return ()
        return [
            Tensor(output.dtype.base_dtype.name, static_shape(output.shape))
            for output in live.outputs
        ]

    def _stack(self, op: str) -> Any:
        """The stack of an op's creation; None if Python did not build the op."""
        live = self._live_op(op)
        return None if live is None else live.traceback

    def _live_op(self, op: str) -> Any:
        """The `tf.Operation` of an op; None if Python did not build it."""
        function, name = self._origin(op)
        if function not in self._ops:
            self._ops[function] = self._find_ops(function)
        ops = self._ops[function]
        # The name in the FunctionDef may have a number that the traced op does not have.
        return ops.get(name) or ops.get(_NUMBER.sub("", name))

    def _origin(self, op: str) -> FunctionOp:
        """The op that Python built."""
        return self._address(op)

    def _find_ops(self, function: str) -> Mapping[str, Any]:
        """The ops that Python built in a function, by name; ``""`` is the graph itself."""
        raise NotImplementedError


class LiveGraph(LiveDetails):
    """A ``tf.Graph`` of this process."""

    def __init__(self, graph: tf.Graph, graph_def: Any, folder: Path | None = None) -> None:
        super().__init__(graph_def, folder)
        self.graph = graph

    def forward_op(self, op: str) -> str:
        live = self._live_op(op)
        original = None if live is None else original_op(live)
        # The forward op of a backward loop or branch is in another body, and has no name here.
        if original is None or original.graph is not live.graph:
            return ""
        return self._name_in_body(op, str(original.name))

    def _find_ops(self, function: str) -> Mapping[str, Any]:
        if not function:
            # Faster than one lookup per op; a GraphDef has the order of its graph.
            names = (node.name for node in self.graph_def.node)
            return dict(zip(names, self.graph.get_operations(), strict=False))
        body = function_body(self.graph, function)
        return {} if body is None else {op.name: op for op in body.get_operations()}


@dataclass(eq=False)
class _Stack:
    """The stack of one or more ops."""

    stack: Any  # TensorFlow's stack
    here: str  # the directory for relative paths
    frames: Sequence[Frame]  # the user's frames in the stack
    next: _Stack | None = None  # the stack of the lookup that last followed a lookup of this stack


class _FrameCache:
    """A cache of the user's frames in stacks.

    Looking up a stack takes six times as long as comparing it with another one. Programs build
    towers, layers and gradients in loops, so stacks often follow one another in the same order.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[tuple[Any, str], _Stack] = {}
        self._last: _Stack | None = None

    def frames(self, stack: Any) -> Sequence[Frame]:
        here, last = current_folder(), self._last
        for likely in () if last is None else (last.next, last):
            if likely is not None and likely.stack == stack and likely.here == here:
                self._last = likely
                return likely.frames
        found = self._known.get((stack, here))
        if found is None:
            found = _Stack(stack, here, users_frames(stack, self._folder))
            self._known[stack, here] = found
        if last is not None:
            last.next = found
        self._last = found
        return found.frames


class OpDetails(NamedTuple):
    """The recorded details of one op; the fields are named as the methods of `Details`.

    The forward op of an op in a function has its name in the function.
    """

    frames: Sequence[Frame] = ()
    device_line: Frame | None = None
    outputs: Sequence[Tensor] = ()
    forward_op: str = ""
    parts_of_keras: Collection[str] = ()


_UNKNOWN = OpDetails()


class RecordedDetails(GraphDetails):
    """Details of a graph that another process built. That process recorded them for each op.

    Attributes:
        recorded: the details by function and op, as in `FunctionOp`.
    """

    def __init__(self, graph_def: Any, recorded: Mapping[str, Mapping[str, OpDetails]]) -> None:
        super().__init__(graph_def)
        self.recorded = recorded

    @staticmethod
    def from_live(details: GraphDetails) -> RecordedDetails:
        """Record the details of all ops; equal values are stored once."""
        shared: dict[tuple[Any, ...], tuple[Any, ...]] = {}

        def once(value: Iterable[Any]) -> tuple[Any, ...]:
            values = tuple(value)
            return shared.setdefault(values, values)

        def record(op: str) -> OpDetails:
            return OpDetails(
                once(details.frames(op)),
                details.device_line(op),
                once(details.outputs(op)),
                details.forward_op(op).rpartition(":")[2],
                once(sorted(details.parts_of_keras(op))),
            )

        recorded = {"": {node.name: record(node.name) for node in details.graph_def.node}}
        for function in inlined_functions(details.graph_def):
            name = function.signature.name
            ops = {f"{name}:{node.name}": node.name for node in function.node_def}
            # Names of ops in a graph have no colon.
            details.bodies |= {op: FunctionOp(name, inner) for op, inner in ops.items()}
            recorded[name] = {inner: record(op) for op, inner in ops.items()}
        return RecordedDetails(details.graph_def, recorded)

    def frames(self, op: str) -> Sequence[Frame]:
        return self._find(op).frames

    def device_line(self, op: str) -> Frame | None:
        return self._find(op).device_line

    def outputs(self, op: str) -> Sequence[Tensor]:
        return self._find(op).outputs

    def forward_op(self, op: str) -> str:
        forward = self._find(op).forward_op
        return forward and self._name_in_body(op, forward)

    def parts_of_keras(self, op: str) -> Collection[str]:
        return self._find(op).parts_of_keras

    def _find(self, op: str) -> OpDetails:
        function, name = self._address(op)
        return self.recorded.get(function, {}).get(name, _UNKNOWN)


def static_shape(shape: tf.TensorShape) -> tuple[int | None, ...] | None:
    """A static shape as numbers; None if its rank is not known.

    After ``disable_v2_behavior``, iterating over a `TensorShape` gives ``Dimension`` objects,
    which cannot be hashed.
    """
    return None if shape.rank is None else tuple(shape.as_list())


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
    type, the scope may name any part of a device, such as a job. If the requested device differs
    from the device of this scope, a device function inside the scope decided, and the line defines
    this function. None if the op requests no device, or if a library decided.
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
        line: the ``with`` statement.
        device: the device that the scope names; an empty `Device` for a device function.
        function: the line that defines the device function; None if the scope names a device.
        clears: whether the scope is ``tf.device(None)``, which cancels the scopes around it.
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
