"""Which tensor is the gradient that a variable receives, before the optimiser makes it an update.

An apply op has it as an input. Optimisers that assign an update show it nowhere in the graph; it
is what the program declares, or what `apply_gradients` was called with while the program was
built. An update is never taken for a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.analysis.updates import Update
from placement_checks.core.op_types import is_gradient_update
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.program import AppliedGradient, Gradient, InitialState


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
    applied: Sequence[AppliedGradient],
    initial: InitialState,
) -> GradientTensors:
    """The gradients that one step of a program applies.

    Args:
        placement: what the program asks for.
        graph: its graph, or a copy.
        applied: what the program declares, and what its optimisers were called with.
        initial: which variables are copies, that receive what their first does; and whether it is
            a traced step, which can declare nothing.
    """
    found = GradientTensors()
    analysis = analyse(placement)
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
        elif given := recorded.get(variable):
            if given.gradient and _is_of_one_tower(placement, given.gradient, updates):
                found.unread[variable] = "each tower changes its own, before they are added up"
            elif given.gradient:
                found.gradients[variable] = given.gradient
            elif given.in_body:
                found.unread[variable] = "it is applied inside a branch, loop or function"
            if given.optimizer:
                found.optimizers.add(given.optimizer)
        elif variable in gradient_flow(placement).trained and variable not in initial.mirrors:
            update = f"{names[-1]} ({placement.ops[names[-1]].type}) changes it by an update"
            found.unread[variable] = (
                f"{update}, for which no optimiser is called"
                if initial.values
                else f"{update}; return {{'gradients': [(gradient, variable), …]}}"
            )
    return found


def _is_of_one_tower(placement: Placement, gradient: Gradient, updates: Sequence[Update]) -> bool:
    """Whether what an optimiser is given is of one tower alone, and its updates are of several."""
    analysis = analyse(placement)
    behind = analysis.towers_behind[analysis.flow.number[producer_of(gradient.values)]]
    of_all = (gradient_flow(placement).towers(update) for update in updates)
    return (behind & analysis.all_towers).bit_count() == 1 and any(
        towers.bit_count() > 1 for towers in of_all
    )


def _input(op: tf.Operation) -> Gradient:
    """The gradient among the inputs of an apply op (the names of core/ops/training_ops.cc)."""
    names = [argument.name for argument in op.op_def.input_arg]
    values = op.inputs[names.index("delta" if "delta" in names else "grad")].name
    return Gradient(values, op.inputs[names.index("indices")].name if "indices" in names else "")
