"""Puts the bodies of functions in place of their calls, so that a traced step is a flat graph.

What is in a body gets the name ``call/op``, takes the device of the call where it has none, and
waits for what the call waits for, as TensorFlow's runtime has it (core/common_runtime/
inline_function_utils.cc). Branches and loops stay, but for those around a whole step: of a branch
that applies gradients the shorter side is taken, of a loop of steps one trip. Of branches on
whether an iterator has a next element, the side that takes it.

The nodes of a GraphDef as they are put together: names, devices, and their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef

from placement_checks.core.devices import Device
from placement_checks.core.op_types import (
    FUNCTION_CALLS,
    LOOPS,
    NO_OP,
    OPTIONAL_VALUE,
    TWO_WAY_BRANCHES,
)
from placement_checks.core.placement import producer_of
from placement_checks.tf.graphs import definition_of

COLOCATED = b"loc:@"  # before the name of an op that one is bound to


def functions_of(node: Any) -> Iterator[str]:
    """The names of the functions that a node may call."""
    yield node.op
    for attribute in node.attr.values():
        for function in (attribute.func, *attribute.list.func):
            yield function.name


def called_by(nodes: Iterable[Any], library: Iterable[Any]) -> Set[str]:
    """The names of the functions that nodes call or are given, and of what these call."""
    bodies = {each.signature.name: each.node_def for each in library}
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        for name in functions_of(waiting.pop()):
            if name in bodies and name not in found:
                found.add(name)
                waiting += bodies[name]
    return found


def renamed(source: str, names: Mapping[str, str]) -> str:
    """An input or a tensor, where some ops have other names."""
    name = producer_of(source)
    return source.replace(name, names[name], 1) if name in names else source


def rename_classes(node: Any, names: Mapping[str, str]) -> None:
    """Bind a node to the same ops, where some have other names."""
    if "_class" in node.attr:
        classes = node.attr["_class"].list.s
        bound = [entry.removeprefix(COLOCATED).decode() for entry in classes]
        classes[:] = [COLOCATED + names.get(name, name).encode() for name in bound]


def scopes_of(name: str) -> Iterator[str]:
    """The scopes that a name is in: ``a`` and ``a/b`` for ``a/b/c``."""
    for position, letter in enumerate(name):
        if letter == "/":
            yield name[:position]


def free_scope(name: str, taken: Collection[str]) -> str:
    """A scope for the body of a call, in which none of the ops beside the call is."""
    free, number = name, 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def prefix_input(prefix: str, source: str) -> str:
    """An input of a node in a body: ``call/op:0`` or ``^call/op``."""
    if source.startswith("^"):
        return f"^{prefix}{source[1:]}"
    return f"{prefix}{source}" if ":" in source else f"{prefix}{source}:0"


def canonical_input(stands_for: Mapping[str, str], source: str) -> str:
    """What an input stands for in the end, in the form that a GraphDef has it."""
    while source in stands_for:
        source = stands_for[source]
    return source if source.startswith("^") else source.removesuffix(":0")


@lru_cache(maxsize=4096)
def device_in_body(own: str, outer: str) -> str:
    """The device of a node in a body whose call has a device too."""
    if not own or not outer:
        return own or outer
    return str(Device.parse(own).over(Device.parse(outer)))


def topological_order(nodes: Sequence[Any]) -> Iterator[Any]:
    """The nodes, each after its inputs, else in their order."""
    by_name = {node.name: node for node in nodes}
    done: set[str] = set()
    for root in nodes:
        waiting = [] if root.name in done else [(root, iter(root.input))]
        done.add(root.name)
        while waiting:
            node, sources = waiting[-1]
            for source in sources:
                name = producer_of(source)
                if name not in done and name in by_name:
                    done.add(name)
                    waiting.append((by_name[name], iter(by_name[name].input)))
                    break
            else:
                yield node
                waiting.pop()


_COMPILED = "_XlaMustCompile"


class TracedOp(NamedTuple):
    """Where an op of a flat graph was traced: the function, and the op's name in there.

    The function is ``""`` for the one that is flattened.
    """

    function: str
    name: str


@dataclass
class FlatGraph:
    """A graph without calls.

    Attributes:
        graph_def: its ``GraphDef``, whose nodes come after their inputs.
        origins: where each op was traced.
        compiled: the calls that XLA was to compile, by their names.
        loops: the loops of steps, of which it has one trip.
        closed: the types of other ops that have a step inside of them, by their names.
    """

    graph_def: Any
    origins: Mapping[str, TracedOp]
    compiled: Sequence[str]
    loops: Sequence[str]
    closed: Mapping[str, str]
    _stands_for: Mapping[str, str] = field(repr=False)

    def tensor(self, name: str) -> str:
        """The tensor that one of the traced function is, by its name there (``add:0``)."""
        full = prefix_input("", name)
        return self._stands_for.get(full, full.removesuffix(":0"))

    def op(self, name: str) -> str:
        """The op that stands for the end of one of the traced function."""
        return producer_of(self._stands_for.get(f"^{name}", name))


def flatten(
    graph_def: Any,
    holds_step: Callable[[str], bool],
    placeholders: Callable[[str], Sequence[str]],
) -> FlatGraph:
    """A graph with the bodies of functions in place of their calls.

    Args:
        graph_def: the ``GraphDef`` of a traced function, with its library; it is not changed.
        holds_step: whether the function of a name takes gradients and applies them.
        placeholders: the names of the arguments of a function in Python's graph of it, where
            ``_class`` may name them; in a FunctionDef they have others.
    """
    return _Flattening(graph_def, holds_step, placeholders).flat()


class _Flattening:
    def __init__(
        self,
        graph_def: Any,
        holds_step: Callable[[str], bool],
        placeholders: Callable[[str], Sequence[str]],
    ) -> None:
        self._graph_def = graph_def
        self._library = {each.signature.name: each for each in graph_def.library.function}
        self._holds_step = cache(holds_step)
        self._placeholders = placeholders
        self._takes: dict[str, bool] = {}  # whether a function takes an iterator's next element
        self._results: dict[str, tuple[Sequence[Any], Mapping[str, str]]] = {}
        self._nodes: list[Any] = []
        self._prefixes: list[str] = []  # of each node
        self._stands_for: dict[str, str] = {}
        self._origins: dict[str, TracedOp] = {}
        self._compiled: list[str] = []
        self._loops: list[str] = []
        self._closed: dict[str, str] = {}
        self._short: dict[str, str] = {}
        self._steps: list[str] = []  # the prefixes of bodies that take and apply gradients

    def flat(self) -> FlatGraph:
        self._expand("", "", self._graph_def.node, "", "")
        self._connect()
        self._shorten()
        flat = type(self._graph_def)()
        flat.versions.CopyFrom(self._graph_def.versions)
        stay_functions = called_by(self._nodes, self._graph_def.library.function)
        flat.library.function.extend(
            each
            for each in self._graph_def.library.function
            if each.signature.name in stay_functions
        )
        flat.node.extend(topological_order(self._nodes))
        stands_for = {
            source: renamed(canonical_input(self._stands_for, source), self._short)
            for source in self._stands_for
        }
        return FlatGraph(
            flat, self._origins, self._compiled, self._loops, self._closed, stands_for
        )

    def _expand(self, function: str, prefix: str, body: Any, device: str, wait: str) -> None:
        """Add the nodes of a body, all of which wait for the op ``wait``."""
        scopes = {scope for node in body for scope in scopes_of(node.name)}
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
                scope = free_scope(original.name, scopes)
                self._inline(node, called, arguments, f"{prefix}{scope}/")
                continue
            if any(
                self._holds_step(each.func.name)
                for each in original.attr.values()
                if each.HasField("func")
            ):
                self._closed[node.name] = node.op
            self._nodes.append(node)
            self._prefixes.append(prefix)
            self._origins[node.name] = TracedOp(function, original.name)

    def _called(self, node: Any) -> tuple[str, int]:
        """The function that takes the place of a node, and which input is its first argument."""
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
        """Whether a function opens the next element of an iterator, or calls one that does."""
        if function not in self._takes:
            self._takes[function] = False  # itself, should it call itself
            nodes = self._library[function].node_def if function in self._library else ()
            self._takes[function] = any(
                node.op == OPTIONAL_VALUE or any(map(self._takes_element, functions_of(node)))
                for node in nodes
            )
        return self._takes[function]

    def _inline(self, call: Any, name: str, first: int, prefix: str) -> None:
        """Put a body in place of a call."""
        function = self._library[name]
        # Protocol buffers make the attribute that is asked for.
        if any(_COMPILED in each.attr and each.attr[_COMPILED].b for each in (call, function)):
            self._compiled.append(call.name)
        if self._holds_step(name):
            self._steps.append(prefix)
        given = [source for source in call.input if not source.startswith("^")][first:]
        arguments = [argument.name for argument in function.signature.input_arg]
        # `_class` may name an argument as Python's graph has it.
        for names in (self._placeholders(name), arguments):
            for argument, source in zip(names, given, strict=False):
                self._stands_for[f"{prefix}{argument}:0"] = source
                self._stands_for[f"^{prefix}{argument}"] = f"^{producer_of(source)}"
        waits = [source for source in call.input if source.startswith("^")]
        start = self._no_op(f"{prefix}input_control_node", call.device, waits) if waits else ""
        body, results = self._body(name)
        self._expand(name, prefix, body, call.device, start)
        for index, output in enumerate(function.signature.output_arg):
            result = results[function.ret[output.name]]
            self._stands_for[f"{call.name}:{index}"] = prefix_input(prefix, result)
        ends = [f"^{prefix}{end}" for end in function.control_ret.values()]
        end = self._no_op(
            f"{prefix}output_control_node", call.device, ends or [f"^{start}"] * bool(start)
        )
        self._stands_for[f"^{call.name}"] = f"^{end}"

    def _no_op(self, name: str, device: str, waits: Sequence[str]) -> str:
        self._nodes.append(NodeDef(name=name, op=NO_OP, device=device, input=waits))
        self._prefixes.append("")
        return name

    def _body(self, name: str) -> tuple[Sequence[Any], Mapping[str, str]]:
        """The nodes of a function with the inputs of a GraphDef, and its tensors in these terms.

        A FunctionDef names ``op:output:index``, a GraphDef ``op:index``.
        """
        if name not in self._results:
            function = self._library[name]
            tensors = {
                argument.name: f"{argument.name}:0" for argument in function.signature.input_arg
            }
            for node in function.node_def:
                for index, output in enumerate(self._outputs(node)):
                    tensors[f"{node.name}:{output}"] = f"{node.name}:{index}"
            body = []
            for original in function.node_def:
                node = type(original)()
                node.CopyFrom(original)
                node.input[:] = [
                    source if source.startswith("^") else tensors[source]
                    for source in original.input
                ]
                body.append(node)
            self._results[name] = body, tensors
        return self._results[name]

    def _outputs(self, node: Any) -> Iterator[str]:
        """The outputs of a node as ``output:index``, in their order."""
        called = self._library.get(node.op)
        definition = called.signature if called is not None else definition_of(node.op)
        for output in definition.output_arg if definition is not None else ():
            number = 1
            if output.number_attr:
                number = node.attr[output.number_attr].i
            elif output.type_list_attr:
                number = len(node.attr[output.type_list_attr].list.type)
            for index in range(number):
                yield f"{output.name}:{index}"

    def _connect(self) -> None:
        """Let the nodes take what stands for calls and arguments."""
        names = {node.name for node in self._nodes}
        for node, prefix in zip(self._nodes, self._prefixes, strict=True):
            sources = [canonical_input(self._stands_for, source) for source in node.input]
            waits = sorted({source for source in sources if source.startswith("^")})
            node.input[:] = [source for source in sources if not source.startswith("^")] + waits
            if "_class" in node.attr:
                self._bind(node, prefix, names)

    def _shorten(self) -> None:
        """Leave out the names of calls that only lead to the call that trains."""
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
            node.input[:] = [renamed(source, self._short) for source in node.input]
            rename_classes(node, self._short)
        self._origins = {self._short.get(name, name): op for name, op in self._origins.items()}

    def _bind(self, node: Any, prefix: str, names: set[str]) -> None:
        """Name what a node is bound to; what is not in the graph is left out."""
        classes = node.attr["_class"].list.s
        bound = [
            self._bound(prefix, entry.removeprefix(COLOCATED).decode(), names) for entry in classes
        ]
        classes[:] = [COLOCATED + name.encode() for name in bound if name]
        if not classes:
            del node.attr["_class"]

    def _bound(self, prefix: str, name: str, names: set[str]) -> str:
        """An op that a body names: one of its own, or one of a body around it."""
        while True:
            found = producer_of(canonical_input(self._stands_for, f"{prefix}{name}:0"))
            if found in names or not prefix:
                return found if found in names else ""
            around = prefix[:-1].rpartition("/")[0]
            prefix = f"{around}/" if around else ""
