"""The nodes of a GraphDef as they are put together: names, devices, and their order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from placement_checks.core.devices import Device
from placement_checks.core.placement import producer_of

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


def in_body(prefix: str, source: str) -> str:
    """An input of a node in a body: ``call/op:0`` or ``^call/op``."""
    if source.startswith("^"):
        return f"^{prefix}{source[1:]}"
    return f"{prefix}{source}" if ":" in source else f"{prefix}{source}:0"


def resolved(stands_for: Mapping[str, str], source: str) -> str:
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


def in_order(nodes: Sequence[Any]) -> Iterator[Any]:
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
