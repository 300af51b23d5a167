"""Renames the ops of a captured program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any

from tensorflow.core.framework.graph_pb2 import GraphDef

from placement_checks.core.missing import Missing
from placement_checks.core.placement import UNKNOWN_TENSOR
from placement_checks.core.program import CapturedProgram
from placement_checks.graph.details import RecordedDetails
from placement_checks.graph.edits import rename_input, rename_ops
from placement_checks.graph.reading import GraphSource
from placement_checks.util.text import listed

_RENAMED = "variables were renamed"


def with_renamed_variables(
    captured: CapturedProgram, names: Mapping[str, str]
) -> CapturedProgram | Missing:
    """Rename variables of a program that was captured in another process.

    ``names`` maps the old names of variables to their new names.

    Returns:
        The same program with the new names; `Missing` if another op already has one of the new
        names, or if the program uses a strategy.
    """
    source = captured.source
    assert isinstance(source, GraphSource)
    if source.strategy:
        return Missing(f"{_RENAMED}, which prevents the comparison under a tf.distribute strategy")
    if not isinstance(source.details, RecordedDetails):
        return Missing(f"{_RENAMED}, and {captured.name} cannot be run under the new names")
    kept = {node.name for node in captured.graph_def.node} - names.keys()
    if taken := sorted(kept & set(names.values())):
        return Missing(
            f"{_RENAMED}, and other ops of {captured.name} have the new names: {listed(taken)}"
        )
    return with_renamed_ops(captured, partial(rename_input, names=names))


def with_renamed_ops(captured: CapturedProgram, rename: Callable[[str], str]) -> CapturedProgram:
    """Rename ops of a program that was captured in another process.

    ``rename`` returns the new name of an op ``op``, a tensor ``op:0`` or a control input ``^op``.
    Functions and their ops keep their names. The result has a new ``GraphDef``.
    """
    source = captured.source
    assert isinstance(source, GraphSource)
    assert isinstance(source.details, RecordedDetails)
    graph_def = GraphDef()
    graph_def.CopyFrom(source.graph_def)
    rename_ops(graph_def.node, rename)
    recorded = source.details.recorded
    of_graph = {
        rename(op): known._replace(forward_op=known.forward_op and rename(known.forward_op))
        for op, known in recorded[""].items()
    }

    def renamed(value: Any) -> Any:
        """Rename the ops in a value and in its containers; anything else is unchanged."""
        if isinstance(value, str):
            return rename(value) if value not in ("", UNKNOWN_TENSOR) else value
        if isinstance(value, Mapping):
            return {renamed(key): renamed(each) for key, each in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(renamed, value))
        if isinstance(value, list | tuple):
            return type(value)(map(renamed, value))
        if isinstance(value, Set):
            return frozenset(map(renamed, value))
        return value

    def renamed_inputs(inputs: Any) -> Any:
        """Rename the tensors in the inputs that a builder returned."""
        if isinstance(inputs, Mapping):
            return {key: renamed(tensor) for key, tensor in inputs.items()}
        return inputs and list(map(renamed_inputs, inputs))

    step, strategy = source.step_ops, source.strategy
    return replace(
        captured,
        source=replace(
            source,
            details=RecordedDetails(graph_def, {**recorded, "": of_graph}),
            collections={key: renamed(names) for key, names in source.collections.items()},
            step_ops=renamed(step)._replace(
                session=step.session,
                arguments={rename(key): name for key, name in step.arguments.items()},
            ),
            strategy=strategy
            and replace(
                strategy,
                copies=renamed(strategy.copies),
                replica_of={rename(op): each for op, each in strategy.replica_of.items()},
            ),
        ),
        initial=replace(
            captured.initial,
            **{name: renamed(value) for name, value in vars(captured.initial).items()},
        ),
        applied=[
            each._replace(variable=rename(each.variable), gradient=renamed(each.gradient))
            for each in captured.applied
        ],
        step=replace(captured.step, inputs=renamed_inputs(captured.step.inputs)),
        fed={rename(name): value for name, value in captured.fed.items()},
    )
