"""The steps of a program as one flat graph, with variables and constants as ops of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.op_types import CONST, NO_OP, VARIABLE_HANDLE
from placement_checks.core.placement import producer_of
from placement_checks.loading.simulated import as_requested
from placement_checks.loading.tf_internals.distribution import PACKS_GRADIENTS
from placement_checks.loading.traced.calls import SeenCall, trains
from placement_checks.loading.traced.flat_nodes import rename_classes, renamed
from placement_checks.loading.traced.flattening import FlatGraph, TracedOp, flatten
from placement_checks.loading.traced.noting import TracingNotes
from placement_checks.loading.traced.outer_graph import Result, outer_graph
from placement_checks.loading.traced.packed_sums import take_sums_apart
from placement_checks.loading.traced.variables import NotedVariable
from placement_checks.util.text import free_name


class FlatStep:
    """The flat graph of some steps, its devices as on a machine with GPUs.

    Args:
        steps: the calls.
        notes: what was noted of them.
        program: what it is called in reports.

    Attributes:
        graphs: Python's graphs of the steps and of what they call, by the names of functions.
        arguments: what each placeholder stands for.
        given: the placeholders of what the steps are given, but for variables and iterators.
        inputs: those of each replica; empty where replicas share them.

    Raises:
        InputError: a step is within one op of it.
    """

    def __init__(self, steps: Sequence[SeenCall], notes: TracingNotes, program: str) -> None:
        self._notes = notes
        self._outer = outer_graph(steps)
        self.graphs = self._outer.graphs
        self.arguments = self._outer.arguments
        self.given = self._outer.given
        self.inputs = self._outer.inputs
        self._check_open(program, steps[0].name)
        self._put_in_arguments()
        self._part_of = take_sums_apart(self.graph_def, self._packs_gradients)
        self._add_train_op()
        nodes = [self.graph_def.node, *(f.node_def for f in self.graph_def.library.function)]
        for node in (node for body in nodes for node in body):
            node.device = as_requested(node.device)

    def _check_open(self, program: str, step: str) -> None:
        """Check that what trains is in the flat graph, and in no op of it."""
        for name, kind in self.flat.closed.items():
            raise InputError(
                program,
                f"{step} takes its steps inside of one op, {name} ({kind}), "
                "as a loop over a dataset does",
                "write 'for batch in iter(dataset):', or call a tf.function for each batch",
            )

    @cached_property
    def flat(self) -> FlatGraph:
        """The bodies of all functions in one graph."""

        def holds_step(function: str) -> bool:
            return function in self.graphs and trains(self.graphs[function], self._notes.gradients)

        def placeholders(function: str) -> Sequence[str]:
            graph = self.graphs.get(function)
            return [tensor.op.name for tensor in graph.inputs] if graph is not None else ()

        return flatten(self._outer.graph_def, holds_step, placeholders)

    @property
    def graph_def(self) -> Any:
        """Its ``GraphDef``."""
        return self.flat.graph_def

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """The names of variables by those of the placeholders that stand for them.

        Variables of one name are numbered, and with each its copies.
        """
        placeholders = {
            id(noted): name
            for name, value in self.arguments.items()
            if value.dtype == tf.resource
            and (noted := self._notes.variables.of_handle(value)) is not None
            and not noted.orders_collectives
        }
        names: dict[str, str] = {}
        bases: dict[int, str] = {}  # by what the copies are copies of
        taken_bases: set[str] = set()
        taken = set(self._all_names) - self.arguments.keys()
        for noted in self._notes.variables.all():
            if id(noted) in placeholders:
                owner = id(noted if noted.of is None else noted.of)
                if owner not in bases:
                    bases[owner] = free_name(noted.name, taken_bases)
                    taken_bases.add(bases[owner])
                base = bases[owner]
                full = f"{base}/replica_{noted.replica}" if noted.replica else base
                names[placeholders[id(noted)]] = name = free_name(full, taken)
                taken.add(name)
        return names

    @cached_property
    def variables(self) -> Mapping[str, NotedVariable]:
        """The variables of the step, by name."""
        found = {}
        for placeholder, name in self._names.items():
            noted = self._notes.variables.of_handle(self.arguments[placeholder])
            assert noted is not None
            found[name] = noted
        return found

    def _put_in_arguments(self) -> None:
        """Put variables and constants in the place of the placeholders that stand for them."""
        given = set(self.given)
        for node in self.graph_def.node:
            if node.name in self._names:
                name = self._names[node.name]
                _make_variable(node, name, self.variables[name])
            elif node.name in self.arguments:
                value = self.arguments[node.name]
                node.attr.pop("_user_specified_name", None)
                if node.name not in given and value.dtype not in (tf.resource, tf.variant):
                    _make_constant(node, value)
        for node in self.graph_def.node:
            node.input[:] = [renamed(source, self._names) for source in node.input]
            rename_classes(node, self._names)

    def _packs_gradients(self, name: str) -> bool:
        """Whether an op is part of how a strategy adds up many gradients at once."""
        function, traced = self.flat.origins.get(name, TracedOp("", ""))
        try:
            stack = self.graphs[function].get_operation_by_name(traced).traceback
        except KeyError:
            return False
        return any(frame.filename.endswith(PACKS_GRADIENTS) for frame in stack)

    @cached_property
    def train_op(self) -> str:
        """The op that waits for all that the steps do."""
        return free_name("train_step", set(self._all_names))

    def _add_train_op(self) -> None:
        """Add an op that waits for all that the steps do."""
        waits = [self.flat.op(call) for call in self._outer.calls]
        waits += [producer_of(output) for _, output in self.results]
        self.graph_def.node.add(
            name=self.train_op,
            op=NO_OP,
            input=sorted({f"^{self._names.get(name, name)}" for name in waits}),
        )

    @cached_property
    def results(self) -> Sequence[Result]:
        """What the steps return, as tensors of the flat graph."""
        return [
            Result(tensor, renamed(self.flat.tensor(output), self._names))
            for tensor, output in self._outer.results
        ]

    @cached_property
    def origins(self) -> Mapping[str, TracedOp]:
        """Where each op was traced, by its name."""
        origins = {
            self._names.get(name, name): origin
            for name, origin in (*self.flat.origins.items(), *self._outer.origins.items())
        }
        names = {name: self._part_of.get(name, name) for name in self._all_names}
        return {name: origins[traced] for name, traced in names.items() if traced in origins}

    @property
    def _all_names(self) -> Sequence[str]:
        return [node.name for node in self.graph_def.node]


def _make_variable(node: Any, name: str, noted: NotedVariable) -> None:
    variable = noted.variable
    node.name, node.op, node.device = name, VARIABLE_HANDLE, noted.device
    node.attr.clear()
    node.attr["dtype"].type = variable.dtype.base_dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
    node.attr["shared_name"].s = name.encode()


def _make_constant(node: Any, value: Any) -> None:
    node.op = CONST
    node.attr.clear()
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
