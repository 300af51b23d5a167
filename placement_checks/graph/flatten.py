"""Inline the function calls of a traced step, so that it becomes a flat graph.

An inlined op is named ``call/op``. As in TensorFlow's runtime, the device of the call completes
the device of the op, and the op waits for the control inputs of the call
(core/common_runtime/inline_function_utils.cc).

Most branches and loops remain. There are three exceptions:

* If sides of a branch take and apply gradients, the shortest of these sides is inlined.
* If a loop repeats a training step, one iteration is inlined.
* If a branch tests for the next element of an iterator, the side that uses the element is inlined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef

from placement_checks.core.devices import Device
from placement_checks.core.op_types import (
    FUNCTION_CALLS,
    IDENTITY,
    LOOPS,
    NO_OP,
    OPTIONAL,
    OPTIONAL_VALUE,
    TWO_WAY_BRANCHES,
)
from placement_checks.core.placement import producer_of
from placement_checks.graph.graph_def import FunctionOp, body_tensors, function_library
from placement_checks.util.text import free_name
from placement_checks.util.walks import sources_first, walk

COLOCATED = b"loc:@"  # prefix of the name of a colocated op
_COMPILED = "_XlaMustCompile"


class FlatBody(NamedTuple):
    """The body of a function that replaces one call.

    Attributes:
        function: the name of the function; ``""`` for the flattened function itself.
        prefix: the prefix of its names before they were shortened.
        ops: the op of the flat graph for each op of the function.
        calls: the body that replaces each call in the function, by the name of the call.
    """

    function: str
    prefix: str
    ops: dict[str, str]
    calls: dict[str, FlatBody]

    def flat_ops(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the flat graph's ops for ops of the function; for a call, its whole body."""
        for name in names:
            if (op := self.ops.get(name)) is not None:
                yield op
            elif (body := self.calls.get(name)) is not None:
                yield from body.flat_ops([*body.ops, *body.calls])


@dataclass
class FlatGraph:
    """A graph without calls.

    Attributes:
        graph_def: its ``GraphDef``, in topological order.
        bodies: the bodies of all functions, each call before the calls in its body.
        compiled: the names of calls that request compilation by XLA.
        loops: the names of loops over steps; the graph has one iteration of each.
        closed: the types of ops that contain a step but are not inlined, by op name.
    """

    graph_def: Any
    bodies: Sequence[FlatBody]
    compiled: Sequence[str]
    loops: Sequence[str]
    closed: Mapping[str, str]
    _stands_for: Mapping[str, str] = field(repr=False)

    @cached_property
    def origins(self) -> Mapping[str, FunctionOp]:
        """The function and name of each op before flattening."""
        return {
            flat: FunctionOp(body.function, name)
            for body in self.bodies
            for name, flat in body.ops.items()
        }

    def tensor(self, name: str, body: FlatBody | None = None) -> str:
        """The flat graph's tensor for a tensor of a function, such as ``add:0``.

        The default of ``body`` is the body of the flattened function itself.
        """
        here = self.bodies[0] if body is None else body
        full = prefix_input(here.prefix, name)
        if full in self._stands_for:
            return self._stands_for[full]
        op, _, output = name.partition(":")
        flat = here.ops.get(op, f"{here.prefix}{op}")
        return f"{flat}:{output}" if output not in ("", "0") else flat

    def op(self, name: str) -> str:
        """The flat graph's op for a traced op; for a call, the op that ends its body."""
        return producer_of(self._stands_for.get(f"^{name}", name))


def flatten(
    graph_def: Any,
    holds_step: Callable[[str], bool],
    placeholders: Callable[[str], Sequence[str]],
) -> FlatGraph:
    """Replace the calls in a graph with the bodies of their functions.

    Args:
        graph_def: the ``GraphDef`` of a traced function, with its library; it is not changed.
        holds_step: whether a function, given by name, takes gradients and applies them.
        placeholders: returns the names of a function's arguments in its Python graph. Colocation
            (``_class``) may use these names, which differ from the names in the FunctionDef.
    """
    return _Flattening(graph_def, holds_step, placeholders).run()


class _Flattening:
    def __init__(
        self,
        graph_def: Any,
        holds_step: Callable[[str], bool],
        placeholders: Callable[[str], Sequence[str]],
    ) -> None:
        self._graph_def = graph_def
        self._library = function_library(graph_def)
        self._holds_step = cache(holds_step)
        self._placeholders = placeholders
        self._bodies: dict[str, tuple[Sequence[Any], Mapping[str, str]]] = {}
        self._nodes: list[Any] = []
        self._prefixes: list[str] = []  # one for each node
        self._stands_for: dict[str, str] = {}
        self._flat_bodies: list[FlatBody] = []
        self._compiled: list[str] = []
        self._loops: list[str] = []
        self._closed: dict[str, str] = {}
        self._short: dict[str, str] = {}  # new names of ops
        self._steps: list[str] = []  # the prefixes of bodies that take and apply gradients

    def run(self) -> FlatGraph:
        self._expand("", "", self._graph_def.node, "", "")
        self._connect()
        self._shorten()
        flat = type(self._graph_def)()
        flat.versions.CopyFrom(self._graph_def.versions)
        remaining = reachable_functions(self._nodes, self._graph_def.library.function)
        flat.library.function.extend(
            each for each in self._graph_def.library.function if each.signature.name in remaining
        )
        flat.node.extend(topological_order(self._nodes))
        stands_for = {
            source: rename_input(canonical_input(self._stands_for, source), self._short)
            for source in self._stands_for
        }
        return FlatGraph(
            flat, self._flat_bodies, self._compiled, self._loops, self._closed, stands_for
        )

    def _expand(self, function: str, prefix: str, body: Any, device: str, wait: str) -> FlatBody:
        """Add the nodes of a body; nodes without data inputs wait for the op ``wait``."""
        here = FlatBody(function, prefix, {}, {})
        self._flat_bodies.append(here)
        parts = [node.name.split("/") for node in body]
        scopes = {"/".join(part[:end]) for part in parts for end in range(1, len(part))}
        for original in body:
            node = type(original)()
            node.CopyFrom(original)
            node.name = prefix + original.name
            node.device = device_in_body(original.device, device)
            node.input[:] = [prefix_input(prefix, source) for source in original.input]
            if wait and all(source.startswith("^") for source in original.input):
                node.input.append(f"^{wait}")
            called, arguments = self._called(original)
            if called in self._library:
                scope = free_name(original.name, scopes)
                here.calls[original.name] = self._inline(
                    node, called, arguments, f"{prefix}{scope}/"
                )
                continue
            if any(
                self._holds_step(each.func.name)
                for each in original.attr.values()
                if each.HasField("func")
            ):
                self._closed[node.name] = node.op
            self._nodes.append(node)
            self._prefixes.append(prefix)
            here.ops[original.name] = node.name
        return here

    def _called(self, node: Any) -> tuple[str, int]:
        """The function that replaces a node, and the index of the input for its first argument.

        If the node is not replaced, the result contains its op type instead of a function.
        """
        if node.op in FUNCTION_CALLS:
            return node.attr["f"].func.name, 0
        if node.op in LOOPS and self._holds_step(node.attr["body"].func.name):
            self._loops.append(node.name)
            return node.attr["body"].func.name, 0
        if node.op in TWO_WAY_BRANCHES:
            sides = [node.attr[side].func.name for side in ("then_branch", "else_branch")]
            steps = [side for side in sides if self._holds_step(side)]
            if steps:
                return min(steps, key=lambda side: len(self._library[side].node_def)), 1
            for side in filter(self._takes_element, sides):
                return side, 1
        return node.op, 0

    def _takes_element(self, function: str) -> bool:
        """Whether a function or a function that it calls uses the next element of an iterator."""

        def called(name: str) -> Iterator[str]:  # op types and functions
            nodes = self._library[name].node_def if name in self._library else ()
            return (each for node in nodes for each in called_functions(node))

        return OPTIONAL_VALUE in walk([function], called)

    def _inline(self, call: Any, name: str, first: int, prefix: str) -> FlatBody:
        """Replace a call with a function's body; arguments start at the data input ``first``."""
        function = self._library[name]
        # The check for presence matters: reading a missing attribute would create it.
        if any(_COMPILED in each.attr and each.attr[_COMPILED].b for each in (call, function)):
            self._compiled.append(call.name)
        if self._holds_step(name):
            self._steps.append(prefix)
        inputs = [source for source in call.input if not source.startswith("^")][first:]
        arguments = [argument.name for argument in function.signature.input_arg]
        # Colocation may use an argument's name in Python's graph.
        for names in (self._placeholders(name), arguments):
            for argument, source in zip(names, inputs, strict=False):
                self._stands_for[f"{prefix}{argument}:0"] = source
                self._stands_for[f"^{prefix}{argument}"] = f"^{producer_of(source)}"
        waits = [source for source in call.input if source.startswith("^")]
        start = self._no_op(f"{prefix}input_control_node", call.device, waits) if waits else ""
        nodes, results = self._body(name)
        body = self._expand(name, prefix, nodes, call.device, start)
        for index, output in enumerate(function.signature.output_arg):
            result = results[function.ret[output.name]]
            self._stands_for[f"{call.name}:{index}"] = prefix_input(prefix, result)
        ends = [f"^{prefix}{end}" for end in function.control_ret.values()]
        end = self._no_op(
            f"{prefix}output_control_node", call.device, ends or [f"^{start}"] * bool(start)
        )
        self._stands_for[f"^{call.name}"] = f"^{end}"
        return body

    def _no_op(self, name: str, device: str, waits: Sequence[str]) -> str:
        self._nodes.append(NodeDef(name=name, op=NO_OP, device=device, input=waits))
        self._prefixes.append("")
        return name

    def _body(self, name: str) -> tuple[Sequence[Any], Mapping[str, str]]:
        """The nodes of a function with inputs as in a GraphDef, and the names of its tensors."""
        if name not in self._bodies:
            function = self._library[name]
            tensors = {
                argument.name: f"{argument.name}:0" for argument in function.signature.input_arg
            }
            tensors |= body_tensors(function, self._library)
            body = []
            for original in function.node_def:
                node = type(original)()
                node.CopyFrom(original)
                node.input[:] = [
                    source if source.startswith("^") else tensors[source]
                    for source in original.input
                ]
                body.append(node)
            self._bodies[name] = body, tensors
        return self._bodies[name]

    def _connect(self) -> None:
        """Replace calls and arguments in the inputs of all nodes."""
        names = {node.name for node in self._nodes}
        for node, prefix in zip(self._nodes, self._prefixes, strict=True):
            sources = [canonical_input(self._stands_for, source) for source in node.input]
            waits = sorted({source for source in sources if source.startswith("^")})
            node.input[:] = [source for source in sources if not source.startswith("^")] + waits
            if "_class" in node.attr:
                self._colocate(node, prefix, names)

    def _shorten(self) -> None:
        """Remove the scopes of calls around a training step from the names of its ops.

        If several top-level calls contain a step, their own scopes remain.
        """
        steps = defaultdict(list)
        for prefix in self._steps:
            steps[prefix.partition("/")[0]].append(prefix)
        names = {node.name for node in self._nodes}
        for call, prefixes in steps.items():
            innermost = max(prefixes, key=len)
            if all(map(innermost.startswith, prefixes)):
                outer = f"{call}/" if len(steps) > 1 else ""
                short = {
                    name: outer + name.removeprefix(innermost)
                    for name in names
                    if name.startswith(innermost)
                }
                self._short |= {name: bare for name, bare in short.items() if bare not in names}
        for node in self._nodes:
            node.name = self._short.get(node.name, node.name)
            node.input[:] = [rename_input(source, self._short) for source in node.input]
            rename_colocation(node, self._short)
        for body in self._flat_bodies:
            for name, flat in body.ops.items():
                body.ops[name] = self._short.get(flat, flat)

    def _colocate(self, node: Any, prefix: str, names: set[str]) -> None:
        """Update the colocation of a node, and drop ops from it that are not in the graph."""
        classes = node.attr["_class"].list.s
        bound = [
            self._find_named(prefix, entry.removeprefix(COLOCATED).decode(), names)
            for entry in classes
        ]
        classes[:] = [COLOCATED + name.encode() for name in bound if name]
        if not classes:
            del node.attr["_class"]

    def _find_named(self, prefix: str, name: str, names: set[str]) -> str:
        """Find a colocated op in its body or in an enclosing body; ``""`` if it is missing."""
        while True:
            found = producer_of(canonical_input(self._stands_for, f"{prefix}{name}:0"))
            if found in names or not prefix:
                return found if found in names else ""
            outer = prefix[:-1].rpartition("/")[0]
            prefix = f"{outer}/" if outer else ""


def unpack_optionals(graph_def: Any) -> None:
    """Let ops use the tensors that are packed into an optional, instead of its values, in place.

    A loop over a distributed dataset packs the rows of all replicas into one optional. Data flow
    would then lead from the rows of each replica to all replicas.
    """
    nodes = {node.name: node for node in graph_def.node}
    packed: dict[str, Sequence[str]] = {}
    for node in graph_def.node:
        if node.op == OPTIONAL_VALUE:
            source = nodes.get(producer_of(node.input[0]))
            while source is not None and source.op == IDENTITY:
                source = nodes.get(producer_of(source.input[0]))
            if source is not None and source.op == OPTIONAL:
                packed[node.name] = [each for each in source.input if not each.startswith("^")]
    for node in graph_def.node:
        for number, tensor in enumerate(node.input):
            name, _, output = tensor.partition(":")
            if name in packed:  # not the name of a control input, which starts with ^
                node.input[number] = packed[name][int(output or 0)]


def called_functions(node: Any) -> Iterator[str]:
    """The names of functions that a node may call, and its op type, which may be a function."""
    yield node.op
    for attribute in node.attr.values():
        for function in (attribute.func, *attribute.list.func):
            yield function.name


def reachable_functions(nodes: Iterable[Any], library: Iterable[Any]) -> Set[str]:
    """The names of all functions that nodes call or receive, directly or indirectly."""
    bodies = {each.signature.name: each.node_def for each in library}

    def called(nodes: Iterable[Any]) -> Iterator[str]:
        return (name for node in nodes for name in called_functions(node) if name in bodies)

    return set(walk(called(nodes), lambda name: called(bodies[name])))


def rename_input(source: str, names: Mapping[str, str]) -> str:
    """Update an input or a tensor name after ops were renamed."""
    name = producer_of(source)
    return source.replace(name, names[name], 1) if name in names else source


def rename_colocation(node: Any, names: Mapping[str, str]) -> None:
    """Update the colocation of a node after ops were renamed."""
    if "_class" in node.attr:
        classes = node.attr["_class"].list.s
        bound = [entry.removeprefix(COLOCATED).decode() for entry in classes]
        classes[:] = [COLOCATED + names.get(name, name).encode() for name in bound]


def prefix_input(prefix: str, source: str) -> str:
    """Prefix an input of a body's node: ``call/op:0`` or ``^call/op``."""
    if source.startswith("^"):
        return f"^{prefix}{source[1:]}"
    return f"{prefix}{source}" if ":" in source else f"{prefix}{source}:0"


def canonical_input(stands_for: Mapping[str, str], source: str) -> str:
    """Replace an input until it has no replacement, and write the result as in a GraphDef."""
    while source in stands_for:
        source = stands_for[source]
    return source if source.startswith("^") else source.removesuffix(":0")


@lru_cache(maxsize=4096)
def device_in_body(own: str, outer: str) -> str:
    """The device of a body's node. Missing parts come from the device of the call."""
    if not own or not outer:
        return own or outer
    return str(Device.parse(own).over(Device.parse(outer)))


def topological_order(nodes: Sequence[Any]) -> Iterator[Any]:
    """The nodes in graph order, except that the inputs of a node come before the node."""
    by_name = {node.name: node for node in nodes}

    def sources(name: str) -> Iterator[str]:
        return filter(by_name.__contains__, map(producer_of, by_name[name].input))

    return map(by_name.__getitem__, sources_first(by_name, sources))
