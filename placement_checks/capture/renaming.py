"""Renames the variables of a captured program, so that they have the names of another program."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from tensorflow.core.framework.graph_pb2 import GraphDef

from placement_checks.core.missing import Missing
from placement_checks.core.program import CapturedProgram
from placement_checks.graph.details import RecordedDetails
from placement_checks.graph.flatten import rename_colocation
from placement_checks.graph.reading import GraphSource
from placement_checks.util.text import listed

_RENAMED = "variables were renamed"


def with_renamed_variables(
    captured: CapturedProgram, names: Mapping[str, str]
) -> CapturedProgram | Missing:
    """Rename variables of a program that was captured in another process.

    Args:
        captured: the program.
        names: the new name of the op of each variable to rename, by its old name.

    Returns:
        The same program with other names; `Missing` if an op that keeps its name has one of the
        new names, or if the program uses a strategy.
    """
    source = captured.source
    assert isinstance(source, GraphSource)
    details = source.details
    if source.strategy:
        return Missing(f"{_RENAMED}, which prevents the comparison under a tf.distribute strategy")
    if not isinstance(details, RecordedDetails):
        return Missing(f"{_RENAMED}, and {captured.name} cannot be run under the new names")
    kept = {node.name for node in details.graph_def.node} - names.keys()
    if taken := sorted(kept & set(names.values())):
        return Missing(
            f"{_RENAMED}, and other ops of {captured.name} have the new names: {listed(taken)}"
        )
    rename = _Renaming(names)
    graph_def = GraphDef()
    graph_def.CopyFrom(details.graph_def)
    ops = {node.name: rename.name(node.name) for node in graph_def.node}
    for node in graph_def.node:
        node.name = ops[node.name]
        node.input[:] = map(rename.name, node.input)
        rename_colocation(node, ops)
    recorded = {
        rename.name(op): each._replace(forward_op=each.forward_op and rename.name(each.forward_op))
        for op, each in details.recorded.items()
    }
    step = source.step_ops
    session = step.session
    return replace(
        captured,
        source=replace(
            source,
            details=RecordedDetails(graph_def, recorded),
            collections=rename.everywhere(source.collections),
            step_ops=type(step)(*map(rename.everywhere, step))._replace(session=session),
        ),
        initial=replace(
            captured.initial,
            **{name: rename.everywhere(value) for name, value in vars(captured.initial).items()},
        ),
        applied=[
            each._replace(
                variable=rename.name(each.variable),
                gradient=each.gradient and rename.everywhere(each.gradient),
            )
            for each in captured.applied
        ],
        step=replace(captured.step, inputs=rename.inputs(captured.step.inputs)),
        fed={rename.name(name): value for name, value in captured.fed.items()},
    )


class _Renaming:
    """Replaces names of ops, also in names of tensors and of control inputs."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def name(self, text: str) -> str:
        """The new name of an op, a tensor ``op:0`` or a control input ``^op``."""
        control = "^" if text.startswith("^") else ""
        op, colon, port = text.removeprefix("^").partition(":")
        return f"{control}{self._names.get(op, op)}{colon}{port}"

    def inputs(self, value: Any) -> Any:
        """The inputs that a builder returned, with new names of tensors."""
        if isinstance(value, Mapping):
            return {key: self.everywhere(each) for key, each in value.items()}
        return value and list(map(self.inputs, value))

    def everywhere(self, value: Any) -> Any:
        """A value with new names in its containers; anything else is unchanged."""
        if isinstance(value, str):
            return self.name(value)
        if isinstance(value, Mapping):
            return {self.name(str(key)): self.everywhere(each) for key, each in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.everywhere, value))
        if isinstance(value, list | tuple):
            return type(value)(map(self.everywhere, value))
        if isinstance(value, Set):
            return frozenset(map(self.everywhere, value))
        return value
