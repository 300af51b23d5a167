"""Which tensor is the gradient that a variable receives, before the optimiser makes it an update.

An apply op has it as an input. Optimisers that assign an update show it nowhere in the graph; it
is what the program declares, or what `apply_gradients` was called with while the program was
built. An update is never taken for a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import is_gradient_update
from placement_checks.core.placement import Placement
from placement_checks.core.program import AppliedGradient
from placement_checks.loading.applied_gradients import op_name


class Gradient(NamedTuple):
    """The names of the tensors that make up a gradient; a dense one has no indices."""

    values: str
    indices: str = ""


@dataclass
class GradientTensors:
    """The gradients of one program.

    Attributes:
        gradients: by variable.
        unread: variables that are trained, and why their gradient cannot be read.
        optimizers: the types of the ops, or the classes, that apply them.
        updates: the op that updates a variable, by variable.
    """

    gradients: dict[str, Gradient] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    optimizers: set[str] = field(default_factory=set)
    updates: dict[str, str] = field(default_factory=dict)


def gradient_tensors_of(
    placement: Placement,
    graph: tf.Graph,
    pairs: Sequence[tuple[Any, Any]],
    applied: Sequence[AppliedGradient],
) -> GradientTensors:
    """The gradients that one step of a program applies.

    Args:
        placement: what the program asks for.
        graph: its live graph.
        pairs: the gradients and variables that the program itself declares.
        applied: what its optimisers were called with.

    Raises:
        InputError: what it declares are not pairs of a gradient and its variable.
    """
    found = GradientTensors()
    analysis = analyse(placement)
    declared = _by_variable(pairs, placement.program)
    recorded = {gradient.variable: gradient for gradient in applied}
    for variable, updates in analysis.updates.by_variable.items():
        names = [analysis.flow.names[update.op] for update in updates]
        applies = [name for name in names if is_gradient_update(placement.ops[name].type)]
        found.updates[variable] = names[-1]
        if len(applies) == 1 and not placement.ops[applies[0]].caller:
            found.gradients[variable] = _input(graph.get_operation_by_name(applies[0]))
            found.optimizers.add(placement.ops[applies[0]].type)
        elif len(applies) > 1:
            found.unread[variable] = f"{len(applies)} ops of one step apply gradients to it"
        elif variable in declared or variable in recorded:
            gradient = declared[variable] if variable in declared else recorded[variable].gradient
            tensors = _tensors(gradient, graph)
            if tensors:
                found.gradients[variable] = tensors
            elif gradient is not None:
                found.unread[variable] = "it is applied inside a branch, loop or function"
            if variable in recorded:
                found.optimizers.add(recorded[variable].optimizer)
        elif variable in gradient_flow(placement).trained:
            found.unread[variable] = (
                f"{names[-1]} ({placement.ops[names[-1]].type}) changes it by an update; return "
                "{'gradients': [(gradient, variable), …]}"
            )
    return found


def _by_variable(pairs: Sequence[tuple[Any, Any]], program: str) -> dict[str, Any]:
    try:
        return {op_name(variable): gradient for gradient, variable in pairs}
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            program,
            f"its gradients are {pairs!r:.80}",
            "return pairs of a gradient and its variable: [(gradient, variable), …]",
        ) from None


def _input(op: tf.Operation) -> Gradient:
    """The gradient among the inputs of an apply op (the names of core/ops/training_ops.cc)."""
    names = [argument.name for argument in op.op_def.input_arg]
    values = op.inputs[names.index("delta" if "delta" in names else "grad")].name
    return Gradient(values, op.inputs[names.index("indices")].name if "indices" in names else "")


def _tensors(gradient: Any, graph: tf.Graph) -> Gradient | None:
    parts = (
        (gradient.values, gradient.indices)
        if isinstance(gradient, tf.IndexedSlices)
        else (gradient,)
    )
    if any(getattr(part, "graph", None) is not graph for part in parts):
        return None
    return Gradient(*(part.name for part in parts))
