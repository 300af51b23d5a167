"""Captures the workers of a strategy over several processes, and joins their graphs.

The workers are captured in their order, each with the TF_CONFIG of its task. Each worker of
`MultiWorkerMirroredStrategy` has a graph for its own replicas. In one joint graph they look like
`MirroredStrategy` on devices of several tasks: the replicas' collectives meet by their keys, and
the variables are mirrored copies. So the placer and the rules need no special case for workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from placement_checks.capture.child_process.parent import (
    NO_VARIABLES,
    capture_program,
    expect_capture,
)
from placement_checks.capture.eager.cluster import COORDINATOR, SERVERS, cluster_device
from placement_checks.core.cluster_spec import (
    NO_CLUSTER,
    RecordedServer,
    environment_of,
)
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import NO_OP, PLACEHOLDER, VARIABLE_HANDLE
from placement_checks.core.placement import StepOps, producer_of
from placement_checks.core.program import (
    AppliedGradient,
    CapturedProgram,
    Gradient,
    InitialState,
)
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.core.target import Script
from placement_checks.graph.details import OpDetails, RecordedDetails
from placement_checks.graph.flatten import rename_colocation
from placement_checks.graph.reading import GraphSource
from placement_checks.util.progress import step
from placement_checks.util.text import free_name, plural

_TRAINING_JOBS = ("chief", "worker")  # their tasks have replicas


def capture_workers(script: Script, gpus: int, machine: Machine | None) -> CapturedProgram:
    """Run a program until its first training step, as each of its workers, and join the graphs.

    Args:
        script: the program.
        gpus: the number of GPUs that each worker finds.
        machine: the cluster that the program finds in TF_CONFIG; None leaves TF_CONFIG unchanged.

    Raises:
        InputError: the program failed as one of the workers, ended without a training step, or
            exceeded its time limit.
    """
    first = capture_program(script, gpus, first_environment(script, machine))
    if not first.is_worker:
        return first
    assert first.server is not None
    if SERVERS in first.server.cluster:
        return place_on_servers(first)
    workers = {(first.server.job, first.server.task): first}
    cluster = first.server.cluster
    tasks = [(job, task) for job in _TRAINING_JOBS for task in sorted(cluster.get(job, ()))]
    others = [RecordedServer(cluster, *task) for task in tasks if task not in workers]
    for server in others:
        expect_capture(script, gpus, environment_of(cluster, server.job, server.task))
    for server in others:
        with step(f"as {server.name}"):
            workers[server.job, server.task] = _capture_worker(script, gpus, server)
    return join_workers([workers[task] for task in sorted(workers)])


def first_environment(script: Script, machine: Machine | None) -> Mapping[str, str]:
    """Return the environment of the first capture, as the master of a cluster."""
    if machine is None or script.v1:
        return NO_VARIABLES
    if machine.is_local:
        return NO_CLUSTER
    master = machine.master
    addresses = {  # nothing connects to them
        job: {index: f"{job}-{index}.invalid:2222" for index in indices}
        for job, indices in machine.jobs.items()
    }
    return environment_of(addresses, master.job, master.index)


def _capture_worker(script: Script, gpus: int, server: RecordedServer) -> CapturedProgram:
    """Capture one worker; errors name it.

    Raises:
        InputError: the program failed, or did not take its task from TF_CONFIG.
    """
    try:
        environment = environment_of(server.cluster, server.job, server.task)
        worker = capture_program(script, gpus, environment)
        actual = worker.server
        if actual is None or actual.name != server.name:
            name = "a host without a cluster" if actual is None else actual.name
            raise InputError(
                script.name,
                f"it trained as {name}: it ignores the task in TF_CONFIG",
                "read TF_CONFIG, as tf.distribute.cluster_resolver.TFConfigClusterResolver does, "
                "so that every worker can be captured",
            )
    except InputError as error:
        raise InputError(
            error.object,
            f"started as {server.name}, {'it ' if error.is_predicate else ''}{error.message}",
            error.fix,
            details=error.details,
        ) from None
    return worker


def join_workers(workers: Sequence[CapturedProgram]) -> CapturedProgram:
    """Join the programs of several workers into one program.

    Properties that are the same in all workers are taken from the first one.

    Args:
        workers: at least one worker, in the order of their replicas. Ops of the first worker keep
            their names; ops of the others get a prefix: ``worker_1/op``.
    """
    return replace(_join(workers), on_one_host=_join(workers, on_one_host=True))


def place_on_servers(coordinator: CapturedProgram) -> CapturedProgram:
    """Replace simulated devices in the program of a coordinator by devices of its cluster.

    These are the devices of the parameter servers and of the first worker.
    """
    source, gpus = _source(coordinator), coordinator.gpus
    strategy = source.strategy
    outside = frozenset(strategy.outside) if strategy else frozenset()
    variables = {node.name for node in source.graph_def.node if node.op == VARIABLE_HANDLE}
    for node in source.graph_def.node:
        if node.name in outside:
            node.device = COORDINATOR
        # An op without a device that reads a variable stays with the variable, on its server.
        elif node.device or variables.isdisjoint(map(producer_of, node.input)):
            node.device = str(cluster_device(Device.parse(node.device), gpus))
    if strategy:
        replicas = [cluster_device(each, gpus) for each in strategy.replicas]
        source = replace(source, strategy=replace(strategy, replicas=replicas))
    return replace(coordinator, source=source)


def _source(captured: CapturedProgram) -> GraphSource:
    assert isinstance(captured.source, GraphSource)
    return captured.source


def _join(workers: Sequence[CapturedProgram], *, on_one_host: bool = False) -> CapturedProgram:
    """Join the workers, each on its task, or all on the GPUs of one host."""
    first, *others = workers
    strategy = _source(first).strategy
    copies = frozenset(strategy.copies) if strategy else frozenset()
    before = 0 if on_one_host else None
    parts = [_Part(first, "", copies, before)]
    for worker in others:
        assert worker.server is not None
        scope = f"{worker.server.job}_{worker.server.task}"
        if before is not None:
            before += parts[-1].gpus
        parts.append(_Part(worker, f"{free_name(scope, parts[0].scopes)}/", copies, before))
    graph_def = GraphDef()
    graph_def.CopyFrom(parts[0].graph_def)
    for part in parts[1:]:
        graph_def.node.extend(part.graph_def.node)
        graph_def.library.function.extend(part.graph_def.library.function)
    recorded = {op: known for part in parts for op, known in part.recorded()}
    strategy, step_ops = _strategy(parts), _step_ops(parts)
    if first.turns == 1:
        step_ops = _as_one_step(step_ops, graph_def)
    noun = "rank" if first.rank else "worker"
    return replace(
        first,
        gpus=len(strategy.replicas) if on_one_host and strategy else first.gpus,
        source=replace(
            _source(first),
            details=RecordedDetails(graph_def, recorded),
            step_ops=step_ops,
            strategy=strategy,
        ),
        initial=_initial(parts),
        applied=[applied for part in parts for applied in part.applied()],
        fed={part.name(name): fed for part in parts for name, fed in part.worker.fed.items()},
        notes=[", each ".join([plural(len(workers), noun), *first.notes[:1]]), *first.notes[1:]],
    )


def _as_one_step(step_ops: StepOps, graph_def: Any) -> StepOps:
    """Add an op that runs the steps of all workers, because none can run alone."""
    name = free_name("step_of_all_workers", {node.name for node in graph_def.node})
    ops = dict.fromkeys(map(producer_of, step_ops.train_op))
    graph_def.node.add(name=name, op=NO_OP, input=[f"^{op}" for op in ops])
    return step_ops._replace(train_op=(name,))


@dataclass(frozen=True)
class _Part:
    """One of several workers.

    Attributes:
        worker: the program of the worker.
        prefix: the prefix of its ops in the joint graph.
        copies: the variables of the first worker that are copies for its replicas.
        before: on one host, the number of GPUs of the workers before this one; None if each
            worker is on a task of its own.
    """

    worker: CapturedProgram
    prefix: str
    copies: frozenset[str]
    before: int | None

    def name(self, op: str) -> str:
        """The name of an op, tensor or input in the joint graph."""
        return f"^{self.prefix}{op[1:]}" if op.startswith("^") else f"{self.prefix}{op}"

    def names(self, ops: Iterable[str]) -> tuple[str, ...]:
        """The names of several ops or tensors in the joint graph."""
        return tuple(map(self.name, ops))

    def variable(self, name: str) -> str:
        """The mirrored variable that a variable of this worker is a copy of."""
        return name if name in self.copies else self.name(name)

    @property
    def source(self) -> GraphSource:
        """The graph of the worker."""
        return _source(self.worker)

    @property
    def gpus(self) -> int:
        """The number of GPUs of its replicas."""
        return self.source.strategy.gpus if self.source.strategy else 0

    def applied(self) -> Iterator[AppliedGradient]:
        """The gradients that its optimizers received, with the names of the joint graph."""
        for each in self.worker.applied:
            gradient = each.gradient and Gradient(
                *(tensor and self.name(tensor) for tensor in each.gradient)
            )
            yield each._replace(gradient=gradient, variable=self.name(each.variable))

    def recorded(self) -> Iterator[tuple[str, OpDetails]]:
        """The details of its ops, with the names of the joint graph."""
        details = self.source.details
        assert isinstance(details, RecordedDetails)
        for op, known in details.recorded.items():
            name = f"{self.function_prefix}{op}" if ":" in op else self.name(op)
            forward = known.forward_op and self.name(known.forward_op)
            yield name, known._replace(forward_op=forward)

    @property
    def function_prefix(self) -> str:
        """The prefix of its functions in the joint graph."""
        return self.prefix.replace("/", "_")

    def device(self, own: Device) -> Device:
        """Convert a device of this worker to a device of the cluster, or of the one host."""
        if self.before is not None:
            return replace(own, index=(own.index or 0) + self.before) if own.is_gpu else own
        assert self.worker.server is not None
        return own.over(Device(self.worker.server.job, task=self.worker.server.task))

    def _default(self, node: Any) -> Device:
        """The device of an op. On one host, an op of a rank without a device needs the GPU."""
        own = Device.parse(node.device)
        is_free = self.before is not None and self.worker.rank is not None
        if is_free and own.type is None and "_class" not in node.attr:
            return Device(type="GPU", index=0)
        return own

    @cached_property
    def scopes(self) -> frozenset[str]:
        """The outermost scopes of its ops."""
        return frozenset(node.name.partition("/")[0] for node in self.worker.graph_def.node)

    @cached_property
    def graph_def(self) -> Any:
        """The ``GraphDef`` with the names and devices of the joint graph."""
        graph_def = GraphDef()
        graph_def.CopyFrom(self.worker.graph_def)
        functions = {
            function.signature.name: f"{self.function_prefix}{function.signature.name}"
            for function in graph_def.library.function
        }
        for function in graph_def.library.function:
            function.signature.name = functions[function.signature.name]
            for node in function.node_def:
                _rename_functions(node, functions)
        ops = {node.name: self.name(node.name) for node in graph_def.node}
        for node in graph_def.node:
            node.name = ops[node.name]
            node.input[:] = self.names(node.input)
            node.device = str(self.device(self._default(node)))
            rename_colocation(node, ops)
            if node.op == VARIABLE_HANDLE:
                node.attr["shared_name"].s = node.name.encode()
            _rename_functions(node, functions)
        return graph_def


def _rename_functions(node: Any, names: Mapping[str, str]) -> None:
    node.op = names.get(node.op, node.op)
    for attribute in node.attr.values():
        kind = attribute.WhichOneof("value")
        if kind in ("func", "list"):
            for function in [attribute.func] if kind == "func" else attribute.list.func:
                function.name = names.get(function.name, function.name)


def _step_ops(parts: Sequence[_Part]) -> StepOps:
    by_variable: defaultdict[str, list[str]] = defaultdict(list)
    gradients: dict[str, Sequence[str]] = {}
    backward: set[str] = set()
    for part in parts:
        step = part.source.step_ops
        for objective, ops in step.gradients.items():
            gradients.update(dict.fromkeys(part.names([objective]), tuple(part.names(ops))))
        backward.update(part.names(step.backward or ()))
        for variable, ops in step.gradients_by_variable.items():
            by_variable[part.variable(variable)] += part.names(ops)
    joined: dict[str, Any] = {
        field: [n for part in parts for n in part.names(getattr(part.source.step_ops, field))]
        for field in ("train_op", "losses", "objectives", "train_ops", "update_ops", "counters")
    }
    return parts[0].source.step_ops._replace(
        **joined,
        inputs=tuple(inputs for part in parts for inputs in _inputs(part)),
        gradients=gradients,
        gradients_by_variable=by_variable,
        backward=frozenset(backward),
    )


def _inputs(part: _Part) -> Iterator[Sequence[str]]:
    """The inputs of each replica. A single replica has all inputs of the step."""
    step = part.source.step_ops
    if step.inputs:
        yield from (part.names(inputs) for inputs in step.inputs)
        return
    placeholders = {node.name for node in part.worker.graph_def.node if node.op == PLACEHOLDER}
    yield part.names(name for name in part.worker.fed if producer_of(name) in placeholders)


def _strategy(parts: Sequence[_Part]) -> Strategy | None:
    replicas: list[Device] = []
    copies: dict[str, Copy] = {}
    for part in parts:
        strategy = part.source.strategy
        if strategy is None:
            continue
        for name, copy in strategy.copies.items():
            replica = len(replicas) + copy.replica
            copies[part.name(name)] = Copy(part.variable(copy.first), replica, copy.in_sync)
        replicas += map(part.device, strategy.replicas)
    first = parts[0].source.strategy
    ranks = [
        rank
        for part in parts
        for rank in (part.source.strategy.ranks if part.source.strategy else ())
    ]
    fed_scalars = {
        part.name(producer_of(name)): (name, value.item())
        for part in parts
        for name, value in part.worker.fed.items()
        if ranks and isinstance(value, np.ndarray) and value.ndim == 0
    }
    return first and replace(
        first, replicas=replicas, copies=copies, ranks=ranks, fed_scalars=fed_scalars
    )


def _initial(parts: Sequence[_Part]) -> InitialState:
    """The initial values of the variables. The first worker sends the values of its copies."""
    values: dict[str, Any] = {}
    mirrors: dict[str, str] = {}
    unsynchronized: set[str] = set()
    initializers: dict[str, str] = {}
    local: dict[str, str] = {}
    tables: list[str] = []
    for part in parts:
        initial = part.worker.initial
        unsynchronized.update(part.names(initial.unsynchronized))
        mirrors |= {
            part.name(copy): part.variable(whole) for copy, whole in initial.mirrors.items()
        }
        for name, value in initial.values.items():
            if part.prefix and name in part.copies:
                mirrors.setdefault(part.name(name), name)
            values[part.name(name)] = values.get(mirrors.get(part.name(name), ""), value)
        for kind, operations in (
            (initializers, initial.initializers),
            (local, initial.local_initializers),
        ):
            kind.update({part.name(name): part.name(op) for name, op in operations.items()})
        tables += part.names(initial.tables)
    return InitialState(
        initializers,
        local,
        values,
        tables,
        mirrors,
        frozenset(unsynchronized),
    )
