"""Programs made to run: their graphs with GPUs, or with CPU devices in place of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedValues, SyncOnReadVariable

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import SEEDED
from placement_checks.core.placement import VARIABLE_TYPES, Placement
from placement_checks.core.program import Program, Step
from placement_checks.loading.building import build
from placement_checks.loading.graph_def import keep_whole
from placement_checks.loading.graph_reading import Source, name_of, requested
from placement_checks.run.channels_last import channels_last
from placement_checks.run.devices import session_config, stand_in, stands_in
from placement_checks.run.gradients import Received, noting_applied, received
from placement_checks.util.text import counted

tf1 = tf.compat.v1


@dataclass(frozen=True)
class Runnable:
    """A program that can be run. Tensors and ops are known by name.

    Attributes:
        name: what it is called in reports.
        gpus: how many it was built for.
        graph: its graph, on the devices that are there.
        original: the graph as it was built, which holds what Python functions in it need.
        simulated: whether CPU devices stand in for the GPUs.
        config: for the sessions that run it.
        placement: what it asked for, on GPUs.
        inputs: the tensors to feed by the names of arrays, one mapping a tower or a single one;
            empty where the program does not say.
        shared: whether it splits the batch itself.
        received: the gradients that its variables receive.
        initializers: the ops that give variables their first values, by variable.
        local_initializers: those of local variables, which may be made of the others.
        mirrors: the copies of variables for other replicas, each with the variable.
        unsynchronised: those of `mirrors` that differ, as each replica changes its own.
        tables: the ops that fill lookup tables.
        variables: those that are initialised, by name, with their dtypes.
    """

    name: str
    gpus: int
    graph: tf.Graph
    original: tf.Graph
    simulated: bool
    config: Any
    placement: Placement
    inputs: Sequence[Mapping[str, str]]
    shared: bool
    received: Received
    initializers: Mapping[str, str]
    local_initializers: Mapping[str, str]
    mirrors: Mapping[str, str]
    unsynchronised: frozenset[str]
    tables: Sequence[str]
    variables: Mapping[str, str]


def runnable(
    program: Program, gpus: int, devices: str, *, cluster: Machine | None = None
) -> Runnable:
    """Build a program, and put real or simulated devices in place of those it names.

    Args:
        program: what is built.
        gpus: how many it is built for.
        devices: ``auto``, ``real`` or ``simulated``.
        cluster: the tasks that may be named, whose devices are ``real`` or ``simulated``; none by
            default.

    Raises:
        InputError: it cannot be built, what it says about its step cannot be used, or it names a
            task that the cluster has not.
        CannotRun: it names tasks, and no cluster is there; or real devices are asked for and
            missing.
    """
    with noting_applied() as noted:
        source, step = build(program, gpus)
    placement = replace(requested(source), policy=step.policy, soft=step.soft)
    asked = [op.requested.index or 0 for op in placement.ops.values() if op.requested.is_gpu]
    most = max([gpus, *(index + 1 for index in asked)])
    jobs = {op.requested.job for op in placement.ops.values()} - {None, "localhost"}
    simulated = stands_in(most, devices) if cluster is None else devices == "simulated"
    if cluster is not None:
        _in_cluster(placement, cluster)
    elif jobs:
        raise CannotRun(
            f"it names the job {sorted(map(str, jobs))[0]}: programs of several tasks are not run"
        )
    elif devices == "real" and stands_in(most):
        raise CannotRun(
            f"{program.name} wants {counted(most, 'GPU')}, and real ones are asked for"
        )
    assert source.live is not None
    initializers = _initialisers(source, tf1.GraphKeys.GLOBAL_VARIABLES)
    local = _initialisers(source, tf1.GraphKeys.LOCAL_VARIABLES)
    tables = source.live.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
    inputs, shared = _inputs(step, program.name)
    return Runnable(
        program.name,
        gpus,
        _on_devices(source.graph_def, simulated=simulated, whole=cluster is not None),
        source.live,
        simulated,
        session_config(most, devices),
        placement,
        inputs,
        shared,
        received(placement, source.live, step.gradients or (), noted),
        initializers,
        local,
        *_mirrors(source),
        [table.name for table in tables],
        {
            variable.name: variable.dtype
            for variable in placement.variables
            if variable.name in initializers or variable.name in local
        },
    )


def _in_cluster(placement: Placement, cluster: Machine) -> None:
    """Check that the cluster has every task that a program names."""
    for op in placement.ops.values():
        if lacking := cluster.lacks(op.requested):
            where = placement.where(op.name)
            raise InputError(
                placement.program,
                f"{op.name}{f' (built at {where})' if where else ''} {lacking}",
                cluster.nearest(op.requested),
            )


def _inputs(step: Step, program: str) -> tuple[list[dict[str, str]], bool]:
    """The placeholders by the names of arrays, and whether one mapping is for all towers."""
    if step.inputs is None:
        return [], False
    shared = isinstance(step.inputs, Mapping)
    listed: Any = [step.inputs] if shared else step.inputs
    if not all(isinstance(each, Mapping) for each in listed):
        raise InputError(
            program,
            f"its inputs are {step.inputs!r:.80}",
            "return one mapping of names to placeholders for each tower",
        )
    named = [
        {str(key): _tensor(tensor, str(key), program) for key, tensor in each.items()}
        for each in listed
    ]
    return named, shared or len(named) == 1


def _tensor(value: Any, key: str, program: str) -> str:
    """The name of the tensor that an input is."""
    if isinstance(value, str):
        return value
    if isinstance(value, tf.Tensor):
        return str(value.name)
    if isinstance(value, tf.__internal__.CompositeTensor):
        raise CannotRun(
            f"the input '{key}' of {program} is a {type(value).__name__}; rows are given as arrays"
        )
    raise InputError(
        program, f"its input '{key}' is {value!r:.60}", "return the placeholder itself"
    )


def _initialisers(source: Source, key: str) -> dict[str, str]:
    """The initialisers of the variables of a collection."""
    assert source.live is not None
    holders = {node.name for node in source.graph_def.node if node.op in VARIABLE_TYPES}
    return {
        name_of(variable.name): variable.initializer.name
        for held in source.live.get_collection(key)
        for variable in _copies(held)
        if name_of(variable.name) in holders
    }


def _mirrors(source: Source) -> tuple[dict[str, str], frozenset[str]]:
    """The copies that a strategy keeps of variables, each with the variable it is a copy of.

    And those of them that it brings together only when they are read.
    """
    assert source.live is not None
    mirrors: dict[str, str] = {}
    unsynchronised: set[str] = set()
    for held in source.live.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
        first, *copies = (name_of(copy.name) for copy in _copies(held))
        mirrors |= dict.fromkeys(copies, first)
        if isinstance(held, SyncOnReadVariable):
            unsynchronised.update(copies)
    return mirrors, frozenset(unsynchronised)


def _copies(held: Any) -> Sequence[Any]:
    """The variables that one is made of: under ``MirroredStrategy`` one for each replica."""
    return tuple(held.values) if isinstance(held, DistributedValues) else (held,)


def _on_devices(graph_def: Any, *, simulated: bool, whole: bool) -> tf.Graph:
    """The graph of a GraphDef, also the bodies of its functions, on the devices that are there.

    The devices are changed in the GraphDef: those of a live graph do not reach into functions.
    With ``whole``, tasks do not get constants of their own, under other names.
    """
    copied = type(graph_def)()
    copied.CopyFrom(graph_def)
    bodies = (body.node_def for body in copied.library.function)
    for nodes in (copied.node, *bodies):
        for number, node in enumerate(nodes):
            if simulated:
                node.device = stand_in(node.device)
            if SEEDED.match(node.op) and not (node.attr["seed"].i or node.attr["seed2"].i):
                node.attr["seed2"].i = number + 1  # so that the next run starts alike
    if simulated:
        channels_last(copied)
    if whole:
        keep_whole(copied)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(copied, name="")
    return graph
