"""Programs made to run: their graphs with GPUs, or with CPU devices in place of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.gpus import Devices
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import RANDOM_SEEDED
from placement_checks.core.placement import Placement
from placement_checks.core.program import BuiltProgram, Step
from placement_checks.loading.graph_def import keep_constants_whole
from placement_checks.loading.simulated import to_simulated
from placement_checks.loading.steps import components
from placement_checks.run.channels_last import channels_last
from placement_checks.run.collectives import sums_for_collectives
from placement_checks.run.devices import session_config, uses_simulated
from placement_checks.run.fed_ops import cut_off, fed_ops
from placement_checks.run.gradients import GradientTensors, gradient_tensors_of
from placement_checks.util.text import plural

tf1 = tf.compat.v1


@dataclass(frozen=True)
class RunnableProgram:
    """A program that can be run. Tensors and ops are known by name.

    Attributes:
        built: the program.
        graph: its graph, on the devices that are there.
        simulated: whether CPU devices stand in for the GPUs.
        config: for the sessions that run it.
        inputs: the tensors to feed by the names of arrays, one mapping a tower or a single one;
            empty where the program does not say.
        shared: whether it splits the batch itself.
        gradient_tensors: the gradients that its variables receive.
        ends_at: when its runs must have ended, in seconds of `time.monotonic`.
    """

    built: BuiltProgram
    graph: tf.Graph
    simulated: bool
    config: Any
    inputs: Sequence[Mapping[str, str]]
    shared: bool
    gradient_tensors: GradientTensors
    ends_at: float = math.inf

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return self.built.name

    @property
    def gpus(self) -> int:
        """How many it was built for."""
        return self.built.gpus

    @property
    def placement(self) -> Placement:
        """What it asked for, on GPUs."""
        return self.built.requested

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """The variables that are initialised, by name, with their dtypes."""
        initial = self.built.initial
        initialised = initial.compared | initial.local_initializers.keys()
        return {
            variable.name: variable.dtype
            for variable in self.built.requested.variables
            if variable.name in initialised
        }


def runnable(
    built: BuiltProgram, devices: Devices, *, cluster: Machine | None = None
) -> RunnableProgram:
    """Put real or simulated devices in place of those that a program names.

    Args:
        built: what runs.
        devices: ``auto``, ``real`` or ``simulated``.
        cluster: the tasks that may be named, whose devices are ``real`` or ``simulated``; none by
            default.

    Raises:
        InputError: what it says about its step cannot be used, or it names a task that the
            cluster has not.
        CannotRun: it is a graph without its program, or names tasks, and no cluster is there; or
            real devices are asked for and missing.
    """
    if not built.program:
        what = "is a saved graph" if built.graph is None else "was built elsewhere"
        raise CannotRun(f"{built.name} {what}, and only programs are run")
    if built.turns > 1:
        raise CannotRun(
            f"{built.name} takes {built.turns} different training steps in turn, and what is "
            "compared is one"
        )
    placement = built.requested
    indices = [op.requested.index or 0 for op in placement.ops.values() if op.requested.is_gpu]
    most_gpus = max([built.gpus, *(index + 1 for index in indices)])
    if cluster is not None:
        simulated = devices == "simulated"
        _in_cluster(placement, cluster)
    else:
        simulated = uses_simulated(most_gpus, devices)
        _on_this_machine(placement, most_gpus, devices)
    _have_values(built)
    config = session_config(most_gpus, devices)
    config.allow_soft_placement = placement.soft
    inputs, shared = _inputs(built.step, built.name)
    graph = _on_devices(built, simulated=simulated, whole=cluster is not None)
    return RunnableProgram(
        built=built,
        graph=graph,
        simulated=simulated,
        config=config,
        inputs=inputs,
        shared=shared,
        gradient_tensors=gradient_tensors_of(placement, graph, built.applied, built.initial),
    )


def _have_values(built: BuiltProgram) -> None:
    """Check that something is known of what each variable of a watched step begins with."""
    values = built.initial.values
    if not values:
        return
    for variable in built.requested.variables:
        if variable.name not in values:
            where = built.requested.where(variable.name)
            raise CannotRun(
                f"the first step of {built.name} makes {variable.name}"
                f"{f' (built at {where})' if where else ''}, of a value that only the step knows; "
                "make it before: a layer with model.build(…), slots with "
                "optimizer.build(model.trainable_variables)"
            )


def _in_cluster(placement: Placement, cluster: Machine) -> None:
    """Check that the cluster has every task that a program names."""
    for op in placement.ops.values():
        if lacking := cluster.lacks(op.requested):
            where = placement.where(op.name)
            raise InputError(
                placement.program,
                f"{op.name}{f' (built at {where})' if where else ''} {lacking}",
                cluster.fix_for(op.requested),
            )


def _on_this_machine(placement: Placement, gpus: int, devices: Devices) -> None:
    """Check that a program of so many GPUs names no other task, nor real GPUs that are missing."""
    jobs = {op.requested.job for op in placement.ops.values()} - {None, "localhost"}
    if jobs:
        raise CannotRun(
            f"it names the job {sorted(map(str, jobs))[0]}: programs of several tasks are not run"
        )
    if devices == "real" and uses_simulated(gpus):
        raise CannotRun(
            f"{placement.program} wants {plural(gpus, 'GPU')}, and real ones are asked for"
        )


def _inputs(step: Step, program: str) -> tuple[list[dict[str, str]], bool]:
    """The placeholders by the names of arrays, and whether one mapping is for all towers."""
    if step.inputs is None:
        return [], False
    shared = isinstance(step.inputs, Mapping)
    listed: Any = [step.inputs] if shared else step.inputs
    if not all(isinstance(mapping, Mapping) for mapping in listed):
        raise InputError(
            program,
            f"its inputs are {step.inputs!r:.80}",
            "return one mapping of names to placeholders for each tower",
        )
    named = [
        {str(key): _tensor(tensor, str(key), program) for key, tensor in mapping.items()}
        for mapping in listed
    ]
    return named, shared or len(named) == 1


def _tensor(value: Any, key: str, program: str) -> str:
    """The name of the tensor that an input is."""
    if isinstance(value, str):
        return value
    if isinstance(value, tf.Tensor):
        return str(value.name)
    if isinstance(value, tf.Variable) or components(value):
        raise CannotRun(
            f"the input '{key}' of {program} is a {type(value).__name__}; rows are given as arrays"
        )
    raise InputError(
        program, f"its input '{key}' is {value!r:.60}", "return the placeholder itself"
    )


def _on_devices(built: BuiltProgram, *, simulated: bool, whole: bool) -> tf.Graph:
    """The graph of a program, also the bodies of its functions, on the devices that are there.

    The devices are changed in the GraphDef: those of a live graph do not reach into functions.
    With ``whole``, tasks do not get constants of their own, under other names.
    """
    copied = type(built.graph_def)()
    copied.CopyFrom(built.graph_def)
    cut_off(copied, fed_ops(built.requested, built.fed))
    bodies = (body.node_def for body in copied.library.function)
    for nodes in (copied.node, *bodies):
        for number, node in enumerate(nodes):
            if simulated:
                node.device = to_simulated(node.device)
            if node.op in RANDOM_SEEDED and not (node.attr["seed"].i or node.attr["seed2"].i):
                node.attr["seed2"].i = number + 1  # so that the next run starts alike
    if simulated:
        sums_for_collectives(copied, built.name)
        channels_last(copied)
    if whole:
        keep_constants_whole(copied)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(copied, name="")
    return graph
