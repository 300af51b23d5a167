"""Notes what eager code makes, and what functions are traced with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from placement_checks.loading.applied_gradients import Call
from placement_checks.loading.gradient_notes import GradientNotes
from placement_checks.loading.own_graphs import is_whole
from placement_checks.loading.simulated import simulated_scope
from placement_checks.loading.tf_internals.distribution import replicas_told_by_users_lines
from placement_checks.loading.tf_internals.eager_devices import around_eager_devices
from placement_checks.loading.tf_internals.patching import patched
from placement_checks.loading.traced.forward_ops import ForwardOps, noting_forward_ops
from placement_checks.loading.traced.gpu_only_ops import gpu_only_ops_made_up
from placement_checks.loading.traced.named_devices import refuse_stand_in
from placement_checks.loading.traced.reductions import Reductions, noting_reductions
from placement_checks.loading.traced.variables import VariableNotes, noting_variables


@dataclass(frozen=True)
class TracingNotes:
    """What was noted while a program made variables and traced functions.

    Attributes:
        variables: the variables.
        gradients: the gradients that were taken, by graph.
        applied: what optimisers were called with.
        reductions: what strategies added up.
        forward: the forward op of each backward op.
        strategies: those that were made.
    """

    variables: VariableNotes
    gradients: Mapping[Any, GradientNotes]
    applied: Sequence[Call]
    reductions: Reductions
    forward: ForwardOps
    strategies: list[Any]


@contextlib.contextmanager
def noting_traced(*, eager: bool) -> Iterator[tuple[VariableNotes, Reductions, ForwardOps]]:
    """Note in this block what eager code makes; nothing where none is expected."""
    if not eager:
        yield VariableNotes(), Reductions(), ForwardOps()
        return
    with (
        around_eager_devices(_simulated),
        gpu_only_ops_made_up(),
        replicas_told_by_users_lines(),
        patched(tf.Graph, "device", _simulated_in_functions),
        noting_variables() as variables,
        noting_reductions() as reductions,
        noting_forward_ops() as forward,
    ):
        yield variables, reductions, forward


def _simulated(scope: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.device``, led to what stands in for GPUs, which the program must not name itself."""
    simulated = simulated_scope(scope)

    def device(self: Any, name: Any) -> Any:
        refuse_stand_in(name)
        return simulated(self, name)

    return device


def _simulated_in_functions(scope: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.device`` of graphs, led to what stands in for GPUs where eager code traces."""
    simulated = _simulated(scope)

    def device(graph: tf.Graph, name: Any) -> Any:
        traces = not is_whole(graph) and tf.compat.v1.executing_eagerly_outside_functions()
        return (simulated if traces else scope)(graph, name)

    return device
