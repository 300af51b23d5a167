"""Captures the workers of a strategy over several processes, and joins their graphs.

The workers are captured in their order, each with the TF_CONFIG of its task. Each worker of
`MultiWorkerMirroredStrategy` has a graph for its own replicas. The joint graph looks like a graph
of `MirroredStrategy` on devices of several tasks: the collectives of the replicas have the same
keys, and the variables are mirrored copies. So the placer and the rules need no special case for
workers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from placement_checks.capture.child_process.parent import (
    NO_VARIABLES,
    capture_program,
    expect_capture,
    name_process,
)
from placement_checks.capture.eager.cluster import COORDINATOR, SERVERS, cluster_device
from placement_checks.capture.renaming import with_renamed_ops
from placement_checks.core.cluster_spec import NO_CLUSTER, RecordedServer, environment_of
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import NO_OP, PLACEHOLDER, VARIABLE_HANDLE
from placement_checks.core.placement import StepOps, producer_of
from placement_checks.core.program import CapturedProgram, InitialState
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.core.target import Script
from placement_checks.graph.details import RecordedDetails
from placement_checks.graph.edits import rename_functions
from placement_checks.graph.reading import GraphSource
from placement_checks.util.progress import step
from placement_checks.util.text import free_name, plural

_WORKER = "worker"
_TRAINING_JOBS = ("chief", _WORKER)  # their tasks have replicas
_T = TypeVar("_T")


def capture_workers(script: Script, gpus: int, machine: Machine | None) -> CapturedProgram:
    """Capture a program once for each of its workers, and join the graphs.

    Each worker finds ``gpus`` GPUs. TF_CONFIG describes the cluster of ``machine``; if the machine
    is None, TF_CONFIG is unchanged.

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


def capture_only_worker(script: Script, gpus: int) -> CapturedProgram:
    """Capture a program of several workers as the only worker of its cluster, on one host.

    TF_CONFIG describes a cluster of one worker, because programs read the number of workers from
    it, for example to compute their batch size.

    Raises:
        InputError: the program failed, ended without a training step, or exceeded its time limit.
    """
    cluster = {_WORKER: {0: _address(_WORKER, 0)}}
    captured = capture_program(script, gpus, environment_of(cluster, _WORKER, 0))
    return replace(captured, is_worker=False, server=None)


def first_environment(script: Script, machine: Machine | None) -> Mapping[str, str]:
    """Return the environment variables of the first capture, the cluster's master."""
    if machine is None or script.settings.v1:
        return NO_VARIABLES
    if machine.is_local:
        return NO_CLUSTER
    master = machine.master
    addresses = {
        job: {index: _address(job, index) for index in indices}
        for job, indices in machine.jobs.items()
    }
    return environment_of(addresses, master.job, master.index)


def _address(job: str, index: int) -> str:
    """The invented address of a task. No process connects to it."""
    return f"{job}-{index}.invalid:2222"


def _capture_worker(script: Script, gpus: int, server: RecordedServer) -> CapturedProgram:
    """Capture one worker.

    Raises:
        InputError: the program failed, or ignored the task in TF_CONFIG.
    """
    environment = environment_of(server.cluster, server.job, server.task)
    with name_process(f"started as {server.name}"):
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
    return worker


def join_workers(workers: Sequence[CapturedProgram]) -> CapturedProgram:
    """Join the programs of workers, in the order of their replicas, into one program.

    Ops of the first worker keep their names; ops of the other workers get a prefix:
    ``worker_1/op``. Properties that are the same in all workers are copied from the first worker.
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


def _details(captured: CapturedProgram) -> RecordedDetails:
    details = _source(captured).details
    assert isinstance(details, RecordedDetails)
    return details


def _join(workers: Sequence[CapturedProgram], *, on_one_host: bool = False) -> CapturedProgram:
    """Join the workers, each on its task, or all on the GPUs of one host."""
    first, *others = workers
    scopes = {node.name.partition("/")[0] for node in first.graph_def.node}
    prefixes = ["", *(f"{free_name(_scope(worker), scopes)}/" for worker in others)]
    gpus_before = accumulate(map(_replica_gpus, workers), initial=0)
    parts = [
        _part(worker, prefix, before if on_one_host else None)
        for worker, prefix, before in zip(workers, prefixes, gpus_before, strict=False)
    ]
    strategy = _source(first).strategy
    copied = strategy.copies if strategy else ()
    # The mirrored variable of each copy. Copies are named as in the joint graph.
    whole = {f"{prefix}{name}": name for prefix in prefixes for name in copied}
    graph_def = parts[0].graph_def
    for part in parts[1:]:
        graph_def.node.extend(part.graph_def.node)
        graph_def.library.function.extend(part.graph_def.library.function)
    arguments = (
        _arguments(worker, prefix) for worker, prefix in zip(workers, prefixes, strict=True)
    )
    step_ops = _step_ops(parts, whole)._replace(arguments=_merged(arguments))
    if first.step_count == 1:
        step_ops = _as_one_step(step_ops, graph_def)
    if strategy:
        strategy = _strategy(parts, whole)
        if strategy.ranks:
            scalars = _fed_scalars(zip(workers, prefixes, strict=True))
            strategy = replace(strategy, fed_scalars=scalars)
    recorded = [_details(part).recorded for part in parts]
    noun = "rank" if first.rank else "worker"
    return replace(
        first,
        gpus=len(strategy.replicas) if on_one_host and strategy else first.gpus,
        source=replace(
            _source(first),
            details=RecordedDetails(
                graph_def,
                {**_merged(recorded), "": _merged(each[""] for each in recorded)},
            ),
            step_ops=step_ops,
            strategy=strategy,
        ),
        initial=_initial([part.initial for part in parts], whole),
        applied=[applied for part in parts for applied in part.applied],
        fed=_merged(part.fed for part in parts),
        notes=[", each ".join([plural(len(workers), noun), *first.notes[:1]]), *first.notes[1:]],
    )


def _scope(worker: CapturedProgram) -> str:
    """The scope of a worker's ops in the joint graph, unless the first worker uses this scope."""
    assert worker.server is not None
    return f"{worker.server.job}_{worker.server.task}"


def _replica_gpus(worker: CapturedProgram) -> int:
    strategy = _source(worker).strategy
    return strategy.gpus if strategy else 0


def _merged(mappings: Iterable[Mapping[str, _T]]) -> dict[str, _T]:
    return {key: value for mapping in mappings for key, value in mapping.items()}


def _as_one_step(step_ops: StepOps, graph_def: Any) -> StepOps:
    """Add an op that runs the steps of all workers, because no worker can run alone."""
    name = free_name("step_of_all_workers", {node.name for node in graph_def.node})
    ops = dict.fromkeys(map(producer_of, step_ops.train_op))
    graph_def.node.add(name=name, op=NO_OP, input=[f"^{op}" for op in ops])
    return step_ops._replace(train_op=(name,))


def _part(worker: CapturedProgram, prefix: str, before: int | None) -> CapturedProgram:
    """Rename the ops of a worker for the joint graph, and change their devices.

    ``before`` is the number of GPUs of the workers before this one, if all are on one host; None
    if each worker is on its own task.
    """

    def device(own: Device) -> Device:
        if before is not None:
            return replace(own, index=(own.index or 0) + before) if own.is_gpu else own
        assert worker.server is not None
        return own.over(Device(worker.server.job, task=worker.server.task))

    def rename(op: str) -> str:
        return f"^{prefix}{op[1:]}" if op.startswith("^") else f"{prefix}{op}"

    renamed = with_renamed_ops(worker, rename)
    source, recorded = _source(renamed), _details(renamed).recorded
    graph_def = source.graph_def
    function_prefix = prefix.replace("/", "_")
    rename_functions(graph_def, lambda function: f"{function_prefix}{function}")
    # On one host, an op of a rank without a device needs the GPU of the rank.
    needs_gpu = before is not None and worker.rank is not None
    for node in graph_def.node:
        own = Device.parse(node.device)
        if needs_gpu and own.type is None and "_class" not in node.attr:
            own = Device(type="GPU", index=0)
        node.device = str(device(own))
        if node.op == VARIABLE_HANDLE:
            node.attr["shared_name"].s = node.name.encode()
    strategy = source.strategy
    return replace(
        renamed,
        source=replace(
            source,
            details=RecordedDetails(
                graph_def,
                {
                    f"{function_prefix}{function}" if function else "": known
                    for function, known in recorded.items()
                },
            ),
            strategy=strategy and replace(strategy, replicas=list(map(device, strategy.replicas))),
        ),
    )


def _step_ops(parts: Sequence[CapturedProgram], whole: Mapping[str, str]) -> StepOps:
    steps = [_source(part).step_ops for part in parts]
    calls = [
        call._replace(sources=[whole.get(source, source) for source in call.sources])
        for each in steps
        for call in each.gradient_calls
    ]
    joined: dict[str, Any] = {
        field: [name for each in steps for name in getattr(each, field)]
        for field in ("train_op", "losses", "train_ops", "update_ops", "counters")
    }
    runs = zip(*(each.runs for each in steps), strict=False)
    return (
        steps[0]
        ._replace(
            **joined,
            runs=[[name for run in of_workers for name in run] for of_workers in runs],
            inputs=[inputs for part in parts for inputs in _inputs(part)],
        )
        .with_gradients(calls)
    )


def _inputs(part: CapturedProgram) -> Sequence[Sequence[str]]:
    """The inputs of each replica. A single replica has all inputs of the step."""
    if inputs := _source(part).step_ops.inputs:
        return inputs
    placeholders = {node.name for node in part.graph_def.node if node.op == PLACEHOLDER}
    return [[name for name in part.fed if producer_of(name) in placeholders]]


def _arguments(worker: CapturedProgram, prefix: str) -> Mapping[str, str]:
    """The arguments of a worker by the names of their placeholders in the joint graph."""
    known = _source(worker).step_ops.arguments
    inputs = (name for of_replica in _inputs(worker) for name in of_replica)
    return {f"{prefix}{name}": known.get(name, producer_of(name)) for name in (*inputs, *known)}


def _strategy(parts: Sequence[CapturedProgram], whole: Mapping[str, str]) -> Strategy:
    strategies = [each for part in parts if (each := _source(part).strategy)]
    replicas: list[Device] = []
    copies: dict[str, Copy] = {}
    replica_of: dict[str, int] = {}
    for strategy in strategies:
        replica_of |= {op: len(replicas) + replica for op, replica in strategy.replica_of.items()}
        for name, copy in strategy.copies.items():
            replica = len(replicas) + copy.replica
            copies[name] = Copy(whole.get(copy.first, copy.first), replica, copy.in_sync)
        replicas += strategy.replicas
    ranks = [rank for strategy in strategies for rank in strategy.ranks]
    return replace(
        strategies[0], replicas=replicas, copies=copies, ranks=ranks, replica_of=replica_of
    )


def _fed_scalars(workers: Iterable[tuple[CapturedProgram, str]]) -> Mapping[str, Hashable]:
    """The placeholders of fed scalars, each with its name in the worker and the fed value.

    ``workers`` pairs each worker with the prefix of its ops in the joint graph.
    """
    return {
        f"{prefix}{producer_of(name)}": (name, value.item())
        for worker, prefix in workers
        for name, value in worker.fed.items()
        if isinstance(value, np.ndarray) and value.ndim == 0
    }


def _initial(states: Sequence[InitialState], whole: Mapping[str, str]) -> InitialState:
    """Join initial values. All copies of a variable get the value from the first worker."""
    mirrors = {
        copy: whole.get(mirrored, mirrored)
        for state in states
        for copy, mirrored in state.mirrors.items()
    }
    values: dict[str, Any] = {}
    for name, value in _merged(state.values for state in states).items():
        if whole.get(name, name) != name:
            mirrors.setdefault(name, whole[name])
        values[name] = values.get(mirrors.get(name, ""), value)
    return InitialState(
        _merged(state.initializers for state in states),
        _merged(state.local_initializers for state in states),
        values,
        [table for state in states for table in state.tables],
        mirrors,
        frozenset[str]().union(*(state.unsynchronized for state in states)),
    )
