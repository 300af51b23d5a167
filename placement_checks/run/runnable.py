"""Programs made to run: their graphs with GPUs, or with CPU devices in place of them.

Which tensor is the gradient that a variable receives, before the optimiser makes it an update.

An apply op has it as an input. Optimisers that assign an update show it nowhere in the graph; it
is what the program declares, or what `apply_gradients` was called with while the program was
built. An update is never taken for a gradient.

Devices to run on: the GPUs that are here, or logical CPUs in their place.

A v1 session makes as many logical CPUs as its configuration asks for, whatever the process has.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tensorflow as tf

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.devices import Devices, local_gpus
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import RANDOM_SEEDED, is_gradient_update
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.program import (
    AppliedGradient,
    BuiltProgram,
    Gradient,
    InitialState,
    Step,
)
from placement_checks.graph.graph_def import keep_constants_whole
from placement_checks.graph.train_step import components
from placement_checks.run.graph_rewrites import (
    convert_to_channels_last,
    fed_ops,
    remove_fed_dependencies,
    replace_collectives,
)
from placement_checks.tf.simulated_devices import to_simulated
from placement_checks.util.text import plural


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


def find_gradient_tensors(
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
            found.gradients[variable] = _gradient_input(graph.get_operation_by_name(applies[0]))
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


def _gradient_input(op: tf.Operation) -> Gradient:
    """The gradient among the inputs of an apply op (the names of core/ops/training_ops.cc)."""
    names = [argument.name for argument in op.op_def.input_arg]
    values = op.inputs[names.index("delta" if "delta" in names else "grad")].name
    return Gradient(values, op.inputs[names.index("indices")].name if "indices" in names else "")


def uses_simulated(gpus: int, devices: Devices = "auto") -> bool:
    """Whether CPU devices stand in for GPUs.

    Args:
        gpus: how many GPUs a program names.
        devices: ``auto`` takes real GPUs where there are enough, ``simulated`` never does.
    """
    return devices == "simulated" or len(local_gpus()) < gpus


def session_config(gpus: int, devices: Devices = "auto") -> Any:
    """The ``ConfigProto`` of a session with as many GPUs, or CPU devices; soft placement is off.

    Args:
        gpus: how many GPUs the program names.
        devices: as for `uses_simulated`.
    """
    if uses_simulated(gpus, devices):
        return tf.compat.v1.ConfigProto(device_count={"CPU": gpus + 1, "GPU": 0})
    return tf.compat.v1.ConfigProto(gpu_options=tf.compat.v1.GPUOptions(allow_growth=True))


@contextlib.contextmanager
def running_on(gpus: int, *, devices: Devices = "auto") -> Iterator[Any]:
    """Build into the default graph for ``gpus`` GPUs, or for what stands in for them.

    Args:
        gpus: how many GPUs the program names.
        devices: as for `uses_simulated`.

    Yields:
        The ``ConfigProto`` for the session that runs the graph, which may be changed.
    """
    config = session_config(gpus, devices)
    with contextlib.ExitStack() as stack:
        if uses_simulated(gpus, devices):
            stack.enter_context(tf.compat.v1.device(lambda op: to_simulated(op.device)))
        yield config


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Let GPUs multiply float32 as float32, and not as TF32, which has 10 bits of fraction."""
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


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


def make_runnable(
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
        _check_tasks(placement, cluster)
    else:
        simulated = uses_simulated(most_gpus, devices)
        _check_single_host(placement, most_gpus, devices)
    _check_initial_values(built)
    config = session_config(most_gpus, devices)
    config.allow_soft_placement = placement.soft
    inputs, shared = _declared_inputs(built.step, built.name)
    graph = _rewrite_graph(built, simulated=simulated, whole=cluster is not None)
    return RunnableProgram(
        built=built,
        graph=graph,
        simulated=simulated,
        config=config,
        inputs=inputs,
        shared=shared,
        gradient_tensors=find_gradient_tensors(placement, graph, built.applied, built.initial),
    )


def _check_initial_values(built: BuiltProgram) -> None:
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


def _check_tasks(placement: Placement, cluster: Machine) -> None:
    """Check that the cluster has every task that a program names."""
    for op in placement.ops.values():
        if lacking := cluster.lacks(op.requested):
            where = placement.where(op.name)
            raise InputError(
                placement.program,
                f"{op.name}{f' (built at {where})' if where else ''} {lacking}",
                cluster.fix_for(op.requested),
            )


def _check_single_host(placement: Placement, gpus: int, devices: Devices) -> None:
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


def _declared_inputs(step: Step, program: str) -> tuple[list[dict[str, str]], bool]:
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
        {str(key): _tensor_name(tensor, str(key), program) for key, tensor in mapping.items()}
        for mapping in listed
    ]
    return named, shared or len(named) == 1


def _tensor_name(value: Any, key: str, program: str) -> str:
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


def _rewrite_graph(built: BuiltProgram, *, simulated: bool, whole: bool) -> tf.Graph:
    """The graph of a program, also the bodies of its functions, on the devices that are there.

    The devices are changed in the GraphDef: those of a live graph do not reach into functions.
    With ``whole``, tasks do not get constants of their own, under other names.
    """
    copied = type(built.graph_def)()
    copied.CopyFrom(built.graph_def)
    remove_fed_dependencies(copied, fed_ops(built.requested, built.fed))
    bodies = (body.node_def for body in copied.library.function)
    for nodes in (copied.node, *bodies):
        for number, node in enumerate(nodes):
            if simulated:
                node.device = to_simulated(node.device)
            if node.op in RANDOM_SEEDED and not (node.attr["seed"].i or node.attr["seed2"].i):
                node.attr["seed2"].i = number + 1  # so that the next run starts alike
    if simulated:
        replace_collectives(copied, built.name)
        convert_to_channels_last(copied)
    if whole:
        keep_constants_whole(copied)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(copied, name="")
    return graph
