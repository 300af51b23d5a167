"""Edits of the nodes of a graph, after which all references to the edited ops are right.

A node refers to other ops by its inputs (``op``, or ``op:1`` for the second output), its control
inputs (``^op``) and its colocation (the attribute ``_class``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from placement_checks.core.placement import producer_of

_CLASS, _COLOCATED = "_class", "loc:@"


def rename_input(source: str, names: Mapping[str, str]) -> str:
    """The name of an input or tensor after ops were renamed."""
    name = producer_of(source)
    return source.replace(name, names[name], 1) if name in names else source


def rename_ops(nodes: Iterable[Any], rename: Callable[[str], str]) -> None:
    """Rename ops, in place.

    ``rename`` returns the new name of an op ``op``, a tensor ``op:1`` or a control input ``^op``.
    """
    for node in nodes:
        node.name = rename(node.name)
        node.input[:] = map(rename, node.input)
        recolocate(node, rename)


def redirect(nodes: Iterable[Any], tensors: Mapping[str, str], ops: Mapping[str, str]) -> None:
    """Let nodes use other tensors and ops, in place.

    Args:
        nodes: the nodes that may use the tensors and ops.
        tensors: the tensor to use instead of each tensor.
        ops: the op to wait for, or to be colocated with, instead of each op.
    """
    for node in nodes:
        node.input[:] = [
            f"^{ops.get(source[1:], source[1:])}"
            if source.startswith("^")
            else tensors.get(source, source)
            for source in node.input
        ]
        recolocate(node, lambda name: ops.get(name, name))


def colocated_ops(node: Any) -> Sequence[str]:
    """The ops that a node is colocated with; a variable names itself."""
    if _CLASS not in node.attr:  # reading a missing attribute would create it
        return ()
    classes = node.attr[_CLASS].list.s
    return [each.decode(errors="replace").removeprefix(_COLOCATED) for each in classes]


def recolocate(node: Any, replacement: Callable[[str], str]) -> None:
    """Replace the ops that a node is colocated with, in place; ``""`` removes one."""
    before = colocated_ops(node)
    if after := [name for each in before if (name := replacement(each))]:
        node.attr[_CLASS].list.s[:] = [f"{_COLOCATED}{name}".encode() for name in after]
    elif before:
        del node.attr[_CLASS]


def rename_functions(graph_def: Any, rename: Callable[[str], str]) -> None:
    """Rename all functions of a graph, and the calls of them, in place."""
    library = graph_def.library.function
    names = {each.signature.name: rename(each.signature.name) for each in library}
    for function in library:
        function.signature.name = names[function.signature.name]
        _rename_called(function.node_def, names)
    _rename_called(graph_def.node, names)


def _rename_called(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for attribute in node.attr.values():
            kind = attribute.WhichOneof("value")
            if kind in ("func", "list"):
                for function in [attribute.func] if kind == "func" else attribute.list.func:
                    function.name = names.get(function.name, function.name)
