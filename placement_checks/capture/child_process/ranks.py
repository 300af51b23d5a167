"""Captures a Horovod program once for each of its ranks, and joins the graphs.

The ranks are captured one after the other, each with the stand-in for Horovod. A rank's graph has
one replica of the model. In the joint graph, each rank is a task with one GPU, and the collectives
of the same name become collectives of TensorFlow with the same keys. So the ranks look like
workers of `MultiWorkerMirroredStrategy` (`workers`), and the placer and most rules need no special
case for them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from placement_checks.capture.child_process.parent import capture_program, name_process
from placement_checks.capture.child_process.workers import join_workers
from placement_checks.capture.eager.calls import CallWatch
from placement_checks.capture.in_process.fake_gpus import visible_gpus
from placement_checks.core.cluster_spec import NO_CLUSTER, RecordedServer
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import COLLECTIVE_GATHER, COLLECTIVE_REDUCE, VARIABLES
from placement_checks.core.placement import TRAINABLE
from placement_checks.core.program import CapturedProgram
from placement_checks.core.ranks import (
    ALLGATHER,
    ALLREDUCE,
    AVERAGE,
    COLLECTIVE,
    HOROVOD,
    JOB,
    SUM,
    Rank,
)
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.core.target import Script
from placement_checks.graph.details import RecordedDetails
from placement_checks.graph.graph_def import all_nodes, constant
from placement_checks.graph.reading import GraphSource
from placement_checks.horovod.activate import RankWatch
from placement_checks.util.progress import step
from placement_checks.util.text import join_and

_GROUP_KEY = 1
# The attribute merge_op for each of Horovod's reductions. All other reductions become Max.
_MERGES = {SUM: b"Add", AVERAGE: b"Add", "Product": b"Mul", "Min": b"Min"}
_GPU = Device(type="GPU", index=0)


def capture_ranks(script: Script) -> CapturedProgram:
    """Capture a program once for each of its ranks, and join the graphs.

    Raises:
        InputError: the program failed as one of the ranks, ended without a training step, or
            exceeded its time limit; or a rank computes on several GPUs.
        EagerOnlyError: the program must run eagerly.
    """
    size = script.settings.horovod or 1
    first = _capture_rank(script, Rank(0, size))
    if size == 1:
        return first
    ranks = [first]
    for number in range(1, size):
        rank = Rank(number, size)
        with step(f"as {rank.name}"):
            ranks.append(_capture_rank(script, rank))
    return join_ranks(ranks)


def as_rank(built: CapturedProgram, watch: RankWatch, calls: CallWatch | None) -> CapturedProgram:
    """Add the record of the rank that this process has run to the captured program.

    ``calls`` is None if the program does not train in a traced function.
    """
    assert isinstance(built.source, GraphSource)
    session = built.source.step_ops.session or {}
    listed = str(session.get("gpu_options", {}).get("visible_device_list", ""))
    within = [int(each) for each in listed.split(",") if each.strip().isdigit()]
    visible = visible_gpus()
    if within and visible is not None:  # indices into the GPUs that the process sees
        visible = [visible[index] for index in within if index < len(visible)]
    elif within:
        visible = within
    trainable = built.source.collections.get(TRAINABLE, ())
    values = {name: value for name, value in built.initial.values.items() if name in trainable}
    if calls is None or not calls.repeated:  # many programs broadcast after the first step
        values = {}
    return replace(built, rank=watch.record(built.source.live, values, visible))


def join_ranks(ranks: Sequence[CapturedProgram]) -> CapturedProgram:
    """Join the programs of all ranks, in their order.

    Raises:
        InputError: a rank computes on several GPUs.
    """
    keys = _instance_keys(ranks)
    return join_workers([_as_worker(each, keys) for each in ranks])


def _capture_rank(script: Script, rank: Rank) -> CapturedProgram:
    """Capture one rank. Errors name the rank, except for rank 0."""
    named = name_process(f"as {rank.name}", "; the other ranks wait for it")
    with named if rank.number else contextlib.nullcontext():
        return capture_program(script, rank.size, {**NO_CLUSTER, **rank.environment})


def _as_worker(captured: CapturedProgram, keys: Mapping[str, int]) -> CapturedProgram:
    """Convert a rank to a worker of a cluster with one replica, on one GPU.

    Raises:
        InputError: the rank computes on several GPUs.
    """
    source, record = captured.source, captured.rank
    assert isinstance(source, GraphSource)
    assert isinstance(source.details, RecordedDetails)
    assert record is not None
    rank = record.rank
    graph_def = source.details.graph_def
    used = _used_gpu(graph_def, captured.name, rank)
    visible = range(rank.size) if record.gpus is None else record.gpus
    for nodes in (graph_def.node, *(each.node_def for each in graph_def.library.function)):
        constants: list[Any] = []
        for node in nodes:
            device = Device.parse(node.device)
            if device.is_gpu and device.index == used and used < len(visible):
                node.device = str(replace(device, index=0))
            if COLLECTIVE in node.attr:
                constants += _convert_collective(node, rank.size, keys)
        nodes.extend(constants)
    variables = [node.name for node in graph_def.node if node.op in VARIABLES]
    return replace(
        captured,
        gpus=1,
        source=replace(
            source,
            strategy=Strategy(
                HOROVOD,
                [_GPU],
                {name: Copy(name, 0) for name in variables},
                ranks=[replace(record, gpus=[visible[used]] if used < len(visible) else [])],
                replica_of={node.name: 0 for node in graph_def.node},
            ),
        ),
        server=RecordedServer(
            {JOB: {number: f"{JOB}-{number}.invalid:2222" for number in range(rank.size)}},
            JOB,
            rank.number,
        ),
        is_worker=True,
    )


def _used_gpu(graph_def: Any, program: str, rank: Rank) -> int:
    """The index of the GPU that a rank computes on, among the GPUs that its process sees.

    Raises:
        InputError: the rank requests several GPUs.
    """
    requested = {Device.parse(node.device) for node in all_nodes(graph_def)}
    used = sorted({device.index or 0 for device in requested if device.is_gpu})
    if len(used) > 1:
        gpus = join_and(f"/gpu:{index}" for index in used)
        raise InputError(
            program,
            f"as {rank.name}, it requests {gpus}, but a rank has one GPU: towers within the ranks "
            "of Horovod are not supported",
            "give each rank one GPU: set the number of towers to 1, and --horovod to the number "
            "of GPUs",
        )
    return used[0] if used else 0


def _instance_keys(ranks: Sequence[CapturedProgram]) -> Mapping[str, int]:
    """Number the names of all collectives, and mark each collective with its name.

    Functions may have different names in two ranks, so the name of an op in a function does not
    include the name of the function. If several functions have an op of the same name, the
    occurrences are numbered.
    """
    keys: dict[str, int] = {}
    for captured in ranks:
        counts = Counter[str]()
        for node in all_nodes(captured.graph_def):
            if COLLECTIVE in node.attr:
                number = counts[node.name]
                counts[node.name] += 1
                name = f"{node.name} {number}" if number else node.name
                keys.setdefault(name, len(keys) + 1)
                kind = node.attr[COLLECTIVE].s.decode()
                node.attr[COLLECTIVE].s = f"{kind}\n{name}".encode()
    return keys


def _convert_collective(node: Any, size: int, keys: Mapping[str, int]) -> Sequence[Any]:
    """Convert the op of a collective to TensorFlow's collective; return its new inputs.

    A broadcast is not converted, because its value is only assigned before the first step.
    """
    kind, _, name = node.attr[COLLECTIVE].s.decode().partition("\n")
    operation, _, detail = kind.partition(" ")
    del node.attr[COLLECTIVE]
    if operation not in (ALLREDUCE, ALLGATHER):
        return ()
    dtype = node.attr["T"].type
    scope = node.name
    constants = [
        constant(f"{scope}/{part}", np.int32(value), node.device)
        for part, value in (
            ("group_size", size),
            ("group_key", _GROUP_KEY),
            ("instance_key", keys[name]),
        )
    ]
    value, *_ = node.input
    control = [source for source in node.input if source.startswith("^")]
    node.input[:] = [value, *(each.name for each in constants), *control]
    node.attr.clear()
    node.attr["T"].type = dtype
    if operation == ALLGATHER:
        node.op = COLLECTIVE_GATHER
        return constants
    node.op = COLLECTIVE_REDUCE
    node.attr["merge_op"].s = _MERGES.get(detail, b"Max")
    node.attr["final_op"].s = b"Div" if detail == AVERAGE else b"Id"
    return constants
