"""Watches the workers of a strategy over several processes, one after the other.

The programs of several workers as one, whose graphs stand side by side.

Each worker of `MultiWorkerMirroredStrategy` has a graph of its own for its own replicas. In one
graph they are what they are on one host under `MirroredStrategy`: replicas on several devices,
whose sums meet by their keys, and whose variables are copies of each other. So they are placed at
once, and judged by the same rules.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensorflow.core.framework.graph_pb2 import GraphDef

from placement_checks.capture.child_process.parent import NO_VARIABLES, watched
from placement_checks.capture.child_process.snapshot import RecordedProgram
from placement_checks.capture.eager.cluster import COORDINATOR, SERVERS, of_task
from placement_checks.core.cluster_spec import (
    NO_CLUSTER,
    Addresses,
    RecordedServer,
    environment_of,
)
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import PLACEHOLDER, VARIABLE_HANDLE
from placement_checks.core.placement import StepOps, producer_of
from placement_checks.core.program import InitialState
from placement_checks.core.script import Script
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.graph.flatten import rename_colocation
from placement_checks.graph.op_origins import RecordedOrigin
from placement_checks.util.progress import step
from placement_checks.util.text import free_name, plural


def joined_workers(workers: Sequence[RecordedProgram]) -> RecordedProgram:
    """The program of several workers; the first stands for them in what all have alike.

    Args:
        workers: at least one, in the order of their replicas. The ops of the first are called
            what they are, those of the others ``worker_1/op``.
    """
    return replace(_joined(workers), on_one_host=_joined(workers, on_one_host=True))


def on_servers(coordinator: RecordedProgram, gpus: int) -> RecordedProgram:
    """The program of a coordinator, with the devices of its servers and of its first worker.

    Args:
        coordinator: what was watched.
        gpus: how many each worker has.
    """
    graph_def = GraphDef.FromString(coordinator.graph_def)
    strategy = coordinator.strategy
    outside = frozenset(strategy.outside) if strategy else frozenset()
    variables = {node.name for node in graph_def.node if node.op == VARIABLE_HANDLE}
    for node in graph_def.node:
        if node.name in outside:
            node.device = COORDINATOR
        # What only follows a variable goes to its server.
        elif node.device or variables.isdisjoint(map(producer_of, node.input)):
            node.device = str(of_task(Device.parse(node.device), gpus))
    return replace(
        coordinator,
        graph_def=graph_def.SerializeToString(),
        strategy=strategy
        and replace(strategy, replicas=[of_task(each, gpus) for each in strategy.replicas]),
    )


def _joined(workers: Sequence[RecordedProgram], *, on_one_host: bool = False) -> RecordedProgram:
    """The program of several workers, each on its task, or all on the GPUs of one host."""
    first, *others = workers
    kept = frozenset(first.strategy.copies) if first.strategy else frozenset()
    before = 0 if on_one_host else None
    parts = [_Part(first, "", kept, before)]
    for worker in others:
        assert worker.server is not None
        scope = f"{worker.server.job}_{worker.server.task}"
        if before is not None:
            before += parts[-1].gpus
        parts.append(_Part(worker, f"{free_name(scope, parts[0].scopes)}/", kept, before))
    graph_def = GraphDef()
    graph_def.CopyFrom(parts[0].graph_def)
    for part in parts[1:]:
        graph_def.node.extend(part.graph_def.node)
        graph_def.library.function.extend(part.graph_def.library.function)
    return replace(
        first,
        graph_def=graph_def.SerializeToString(),
        origin=_origin(parts),
        step_ops=_step_ops(parts),
        strategy=_strategy(parts),
        initial=_initial(parts),
        fed={part.name(name): fed for part in parts for name, fed in part.worker.fed.items()},
        notes=[f"{plural(len(workers), 'worker')}, each {first.notes[0]}", *first.notes[1:]],
    )


@dataclass(frozen=True)
class _Part:
    """One of several workers.

    Attributes:
        worker: its program.
        prefix: what the names of its ops begin with among those of all.
        kept: the variables of the first worker that the strategy keeps for its replicas.
        before: where all are on one host, how many GPUs come before those of this one; None
            where each is on a task of its own.
    """

    worker: RecordedProgram
    prefix: str
    kept: frozenset[str]
    before: int | None

    def name(self, op: str) -> str:
        """What one of its ops, tensors or inputs is called among those of all."""
        return f"^{self.prefix}{op[1:]}" if op.startswith("^") else f"{self.prefix}{op}"

    def names(self, ops: Iterable[str]) -> tuple[str, ...]:
        """What some are called."""
        return tuple(map(self.name, ops))

    def variable(self, name: str) -> str:
        """What stands for a variable of its first replica: that of the first worker."""
        return name if name in self.kept else self.name(name)

    @property
    def gpus(self) -> int:
        """How many GPUs its replicas are on."""
        return self.worker.strategy.gpus if self.worker.strategy else 0

    def device(self, own: Device) -> Device:
        """Where what asks for a device of its own asks to be among those of all."""
        if self.before is not None:
            return replace(own, index=(own.index or 0) + self.before) if own.is_gpu else own
        assert self.worker.server is not None
        return own.over(Device(self.worker.server.job, task=self.worker.server.task))

    @cached_property
    def own(self) -> Any:
        """Its ``GraphDef``."""
        return GraphDef.FromString(self.worker.graph_def)

    @cached_property
    def scopes(self) -> frozenset[str]:
        """The outermost scopes of its ops."""
        return frozenset(node.name.partition("/")[0] for node in self.own.node)

    @cached_property
    def graph_def(self) -> Any:
        """The same, named and placed as a part of the whole."""
        graph_def = GraphDef()
        graph_def.CopyFrom(self.own)
        functions = {
            function.signature.name: f"{self.prefix.replace('/', '_')}{function.signature.name}"
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
            node.device = str(self.device(Device.parse(node.device)))
            rename_colocation(node, ops)
            if node.op == VARIABLE_HANDLE:
                node.attr["shared_name"].s = node.name.encode()
            _rename_functions(node, functions)
        return graph_def


def _rename_functions(node: Any, names: Mapping[str, str]) -> None:
    """Let a node call the same functions by other names."""
    node.op = names.get(node.op, node.op)
    for attribute in node.attr.values():
        kind = attribute.WhichOneof("value")
        if kind in ("func", "list"):
            for function in [attribute.func] if kind == "func" else attribute.list.func:
                function.name = names.get(function.name, function.name)


def _origin(parts: Sequence[_Part]) -> RecordedOrigin:
    frames: dict[str, Any] = {}
    lines: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    forward: dict[str, str] = {}
    for part in parts:
        origin = part.worker.origin
        frames |= {part.name(op): known for op, known in origin.frames_of.items()}
        lines |= {part.name(op): line for op, line in origin.device_lines.items()}
        outputs |= {part.name(op): known for op, known in origin.outputs_of.items()}
        forward |= {part.name(op): part.name(of) for op, of in origin.forward_ops.items()}
    return RecordedOrigin(frames, lines, outputs, forward)


def _step_ops(parts: Sequence[_Part]) -> StepOps:
    taken: defaultdict[str, list[str]] = defaultdict(list)
    gradients: dict[str, Sequence[str]] = {}
    backward: set[str] = set()
    for part in parts:
        step = part.worker.step_ops
        for objective, ops in step.gradients.items():
            gradients.update(dict.fromkeys(part.names([objective]), tuple(part.names(ops))))
        backward.update(part.names(step.backward or ()))
        for variable, ops in step.taken.items():
            taken[part.variable(variable)] += part.names(ops)
    return parts[0].worker.step_ops._replace(
        train_op=_of_all(parts, "train_op"),
        losses=_of_all(parts, "losses"),
        objectives=_of_all(parts, "objectives"),
        inputs=tuple(inputs for part in parts for inputs in _inputs(part)),
        gradients=gradients,
        taken=taken,
        backward=frozenset(backward),
    )


def _of_all(parts: Sequence[_Part], field: str) -> tuple[str, ...]:
    return tuple(
        name for part in parts for name in part.names(getattr(part.worker.step_ops, field))
    )


def _inputs(part: _Part) -> Iterator[Sequence[str]]:
    """The inputs of each replica; where it has but one, all that it is given."""
    step = part.worker.step_ops
    if step.inputs:
        yield from (part.names(inputs) for inputs in step.inputs)
        return
    placeholders = {node.name for node in part.own.node if node.op == PLACEHOLDER}
    yield part.names(name for name in part.worker.fed if producer_of(name) in placeholders)


def _strategy(parts: Sequence[_Part]) -> Strategy | None:
    replicas: list[Device] = []
    copies: dict[str, Copy] = {}
    for part in parts:
        strategy = part.worker.strategy
        if strategy is None:
            continue
        for name, copy in strategy.copies.items():
            replica = len(replicas) + copy.replica
            copies[part.name(name)] = Copy(part.variable(copy.of), replica, copy.in_sync)
        replicas += map(part.device, strategy.replicas)
    first = parts[0].worker.strategy
    return first and replace(first, replicas=replicas, copies=copies)


def _initial(parts: Sequence[_Part]) -> InitialState:
    """The first values of the variables: of copies that of the first worker, which sends it."""
    values: dict[str, Any] = {}
    mirrors: dict[str, str] = {}
    unsynchronised: set[str] = set()
    for part in parts:
        initial = part.worker.initial
        unsynchronised.update(part.names(initial.unsynchronised))
        mirrors |= {part.name(copy): part.variable(of) for copy, of in initial.mirrors.items()}
        for name, value in initial.values.items():
            if part.prefix and name in part.kept:
                mirrors.setdefault(part.name(name), name)
            values[part.name(name)] = values.get(mirrors.get(part.name(name), ""), value)
    return InitialState(values=values, mirrors=mirrors, unsynchronised=frozenset(unsynchronised))


_TRAINING = ("chief", "worker")  # the jobs whose tasks have replicas


def watched_workers(script: Script, gpus: int, machine: Machine | None) -> RecordedProgram:
    """What a program has built when it comes to its first training step, in all of its workers.

    Args:
        script: the program.
        gpus: how many GPUs each worker is told that there are.
        machine: the cluster that it finds in TF_CONFIG; None for what is there.

    Raises:
        InputError: in one worker it failed before, never trains, or took too long.
    """
    first = watched(script, gpus, _environment(script, machine))
    if not first.is_worker:
        return first
    assert first.server is not None
    if SERVERS in first.server.cluster:
        return on_servers(first, gpus)
    workers = {(first.server.job, first.server.task): first}
    for server in _others(first.server):
        with step(f"as {server.name}"), _named(server):
            environment = environment_of(server.cluster, server.job, server.task)
            worker = watched(script, gpus, environment)
            _check_is(server, worker, script.name)
            workers[server.job, server.task] = worker
    return joined_workers([workers[task] for task in sorted(workers)])


def _environment(script: Script, machine: Machine | None) -> Mapping[str, str]:
    """What a program finds in TF_CONFIG as the task whose server sessions are opened on."""
    if machine is None or script.v1:
        return NO_VARIABLES
    if machine.is_local:
        return NO_CLUSTER
    master = machine.master
    return environment_of(_made_up_addresses(machine), master.job, master.index)


def _made_up_addresses(machine: Machine) -> Addresses:
    """An address for each task, where nobody connects to any."""
    return {
        job: {index: f"{job}-{index}.invalid:2222" for index in indices}
        for job, indices in machine.jobs.items()
    }


def _others(first: RecordedServer) -> Iterator[RecordedServer]:
    """The other workers of a cluster."""
    for job in _TRAINING:
        for task in sorted(first.cluster.get(job, ())):
            if (job, task) != (first.job, first.task):
                yield RecordedServer(first.cluster, job, task)


def _check_is(server: RecordedServer, worker: RecordedProgram, program: str) -> None:
    """Check that a worker was the task that TF_CONFIG has told it to be."""
    it = worker.server
    if it is None or it.name != server.name:
        was = "a host without a cluster" if it is None else it.name
        raise InputError(
            program,
            f"it trains as {was}: it takes its task from elsewhere than TF_CONFIG",
            "let it read TF_CONFIG, as tf.distribute.cluster_resolver.TFConfigClusterResolver "
            "does, so that every worker can be watched",
        )


@contextlib.contextmanager
def _named(server: RecordedServer) -> Iterator[None]:
    """Name the worker in the errors of this block."""
    try:
        yield
    except InputError as error:
        raise InputError(
            error.object,
            f"as {server.name}, {error.message}",
            error.fix,
            details=error.details,
        ) from None
