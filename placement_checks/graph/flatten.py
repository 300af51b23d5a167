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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
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
from placement_checks.core.placement import producer_of, tensor_name
from placement_checks.graph.edits import recolocate, redirect, rename_input, rename_ops
from placement_checks.graph.inlining import (
    FunctionOp,
    InlinedBody,
    Inliner,
    called_functions,
    function_library,
    reachable_functions,
)
from placement_checks.util.text import free_name
from placement_checks.util.walks import sources_first, walk

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
        full = f"{here.prefix}{name}".removesuffix(":0")
        if full in self._stands_for:
            return self._stands_for[full]
        op, _, output = name.partition(":")
        return tensor_name(here.ops.get(op, f"{here.prefix}{op}"), int(output or 0))

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
        self._inliner = Inliner(self._library)
        self._holds_step = cache(holds_step)
        self._placeholders = placeholders
        self._nodes: list[Any] = []
        self._prefixes: list[str] = []  # one for each node
        # The tensors that replace arguments and outputs of calls. A control input ``^call`` is
        # replaced by the op that ends the body.
        self._stands_for: dict[str, str] = {}
        self._flat_bodies: list[FlatBody] = []
        self._compiled: list[str] = []
        self._loops: list[str] = []
        self._closed: dict[str, str] = {}
        self._short: dict[str, str] = {}  # new names of ops
        self._steps: list[str] = []  # the prefixes of bodies that take and apply gradients

    def run(self) -> FlatGraph:
        self._expand("", InlinedBody("", {}, {}), self._graph_def.node, "", "")
        self._connect()
        self._shorten()
        flat = type(self._graph_def)()
        flat.versions.CopyFrom(self._graph_def.versions)
        flat.library.function.extend(reachable_functions(self._nodes, self._library).values())
        flat.node.extend(topological_order(self._nodes))
        stands_for = {
            source: rename_input(self._resolve(source), self._short) for source in self._stands_for
        }
        return FlatGraph(
            flat, self._flat_bodies, self._compiled, self._loops, self._closed, stands_for
        )

    def _expand(
        self, function: str, body: InlinedBody, nodes: Any, device: str, wait: str
    ) -> FlatBody:
        """Add the nodes of a body; nodes without data inputs wait for the op ``wait``."""
        prefix = body.prefix
        here = FlatBody(function, prefix, {}, {})
        self._flat_bodies.append(here)
        parts = [node.name.split("/") for node in nodes]
        scopes = {"/".join(part[:end]) for part in parts for end in range(1, len(part))}
        for original in nodes:
            node = type(original)()
            node.CopyFrom(original)
            node.name = prefix + original.name
            node.device = device_in_body(original.device, device)
            node.input[:] = map(body.tensor, original.input)
            if wait and all(source.startswith("^") for source in original.input):
                node.input.append(f"^{wait}")
            called, first = self._called(original)
            if called in self._library:
                scope = free_name(original.name, scopes)
                here.calls[original.name] = self._inline(node, called, first, f"{prefix}{scope}/")
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
        body = self._inliner.body(function, prefix, inputs)
        # Colocation may use an argument's name in Python's graph.
        placeholders = dict(zip(self._placeholders(name), inputs, strict=False))
        for argument, source in {**placeholders, **body.arguments}.items():
            self._stands_for[f"{prefix}{argument}"] = source
        waits = [source for source in call.input if source.startswith("^")]
        start = self._no_op(f"{prefix}input_control_node", call.device, waits) if waits else ""
        inlined = self._expand(name, body, function.node_def, call.device, start)
        for index, output in enumerate(function.signature.output_arg):
            result = body.tensor(function.ret[output.name])
            self._stands_for[tensor_name(call.name, index)] = result
        ends = [f"^{prefix}{end}" for end in function.control_ret.values()]
        end = self._no_op(
            f"{prefix}output_control_node", call.device, ends or [f"^{start}"] * bool(start)
        )
        self._stands_for[f"^{call.name}"] = f"^{end}"
        return inlined

    def _no_op(self, name: str, device: str, waits: Sequence[str]) -> str:
        self._nodes.append(NodeDef(name=name, op=NO_OP, device=device, input=waits))
        self._prefixes.append("")
        return name

    def _connect(self) -> None:
        """Replace calls and arguments in the inputs of all nodes."""
        names = {node.name for node in self._nodes}
        for node, prefix in zip(self._nodes, self._prefixes, strict=True):
            sources = [self._resolve(source) for source in node.input]
            waits = sorted({source for source in sources if source.startswith("^")})
            node.input[:] = [source for source in sources if not source.startswith("^")] + waits
            recolocate(node, partial(self._find_named, prefix=prefix, names=names))

    def _resolve(self, source: str) -> str:
        """Replace an input until it has no replacement."""
        while source in self._stands_for:
            source = self._stands_for[source]
        return source

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
        rename_ops(self._nodes, partial(rename_input, names=self._short))
        for body in self._flat_bodies:
            for name, flat in body.ops.items():
                body.ops[name] = self._short.get(flat, flat)

    def _find_named(self, name: str, prefix: str, names: set[str]) -> str:
        """Find a colocated op in its body or in an enclosing body; ``""`` if it is missing."""
        while True:
            found = producer_of(self._resolve(f"{prefix}{name}"))
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
    redirect(
        graph_def.node,
        {
            tensor_name(name, number): tensor
            for name, tensors in packed.items()
            for number, tensor in enumerate(tensors)
        },
        {},
    )


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
