"""Make programs runnable: choose devices, rewrite the graph for them, and find the gradients.

Programs run on the GPUs of this machine or, if there are too few, on simulated ones: logical CPUs,
``CPU:i+1`` for ``GPU:i``. A v1 session creates as many logical CPUs as its configuration requests.

The gradient of a variable is the input of its apply op. Optimizers that assign an update have no
apply op. Their gradient is the gradient that the program declares, or that was recorded when it
called `apply_gradients`. Without both, the update is followed back to the gradient
(`step.stages`).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tensorflow as tf

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.devices import Devices, local_gpus
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import RANDOM_SEEDED, is_gradient_update
from placement_checks.core.placement import Placement, producer_of, with_output
from placement_checks.core.program import (
    AppliedGradient,
    CapturedProgram,
    Gradient,
    InitialState,
    Step,
)
from placement_checks.graph.graph_def import keep_constants_whole
from placement_checks.graph.train_step import component_tensors
from placement_checks.run.graph_rewrites import (
    convert_to_channels_last,
    fed_ops,
    remove_fed_dependencies,
    replace_collectives,
)
from placement_checks.step.stages import Stage, WrittenUpdate, written_updates
from placement_checks.tf.simulated_devices import to_simulated
from placement_checks.tf.startup import INSTALL_CUDA
from placement_checks.util.text import plural

tf1 = tf.compat.v1

_PROPORTIONAL = "GradientDescent"  # an optimizer that is written out, with or without momentum


@dataclass(frozen=True)
class TimeLimit:
    """The time limit of all runs of a program and its reference."""

    seconds: float = math.inf  # how long the runs may take
    ends_at: float = math.inf  # when they must have ended, in seconds of `time.monotonic`

    @staticmethod
    def from_now(seconds: float) -> TimeLimit:
        return TimeLimit(seconds, time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.ends_at - time.monotonic()


UNLIMITED = TimeLimit()


@dataclass
class Gradients:
    """The gradients that one step of a program applies.

    Attributes:
        by_variable: the gradient of each variable, before the optimizer turns it into an update.
        unreadable: by trained variable with an unreadable gradient, the reason.
        optimizers: the types of the apply ops, or the classes of the optimizers.
        updates: the op that updates each variable.
        written: the updates that are followed back to a gradient, by variable. A comparison may
            choose another stage of such a gradient.
    """

    by_variable: dict[str, Gradient] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    optimizers: set[str] = field(default_factory=set)
    updates: dict[str, str] = field(default_factory=dict)
    written: dict[str, WrittenUpdate] = field(default_factory=dict)

    @property
    def tensors(self) -> list[str]:
        """All tensors of gradients: values, and indices of sparse gradients."""
        return [name for gradient in self.by_variable.values() for name in gradient if name]


@dataclass(frozen=True)
class RunnableProgram:
    """A program that can be run. Tensors and ops are identified by name.

    Attributes:
        built: the program.
        graph: its graph, rewritten for the devices of this machine.
        simulated: whether CPU devices simulate the GPUs.
        config: the configuration of its sessions.
        inputs: mappings of array names to the tensors that take the arrays: one mapping for each
            tower, or one for all; empty if the program declares no inputs.
        gradients: the gradients of its variables.
        limit: the time limit of its runs.
        unusable_gpus: why it does not run on the GPUs of this machine, although there are enough;
            ``""`` otherwise.
    """

    built: CapturedProgram
    graph: tf.Graph
    simulated: bool
    config: Any
    inputs: Sequence[Mapping[str, str]]
    gradients: Gradients
    limit: TimeLimit = UNLIMITED
    unusable_gpus: str = ""

    @property
    def name(self) -> str:
        """The name of the program in messages, without command-line arguments."""
        return self.built.short_name

    @property
    def gpus(self) -> int:
        return self.built.gpus

    @property
    def placement(self) -> Placement:
        """The requested placement, on GPUs."""
        return self.built.requested

    @property
    def has_shared_inputs(self) -> bool:
        """Whether one mapping is for all towers, because the program splits the batch itself."""
        return len(self.inputs) == 1

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """The dtypes of the variables that are initialized, by name."""
        initial = self.built.initial
        initialized = initial.compared | initial.local_initializers.keys()
        return {
            variable.name: variable.dtype
            for variable in self.built.requested.variables
            if variable.name in initialized
        }

    def ancestors(self, roots: Iterable[str], fed: Collection[str]) -> list[str]:
        """Return the ops that the roots depend on, in building order, up to fed tensors."""
        flow = analyze(self.placement).flow
        ends = {flow.number[op] for op in fed_ops(self.placement, fed)}
        start = [flow.number[producer_of(root)] for root in roots]
        reached = flow.reachable(start, flow.all_inputs, until=ends.__contains__)
        return [flow.names[op] for op in sorted(reached - ends)]

    def updated_by(self, roots: Iterable[str], fed: Collection[str]) -> list[str]:
        """Return the variables that a run updates before it yields these tensors."""
        updates = analyze(self.placement).updates.by_variable
        updating = {
            self.placement.by_number[update.op].name: variable
            for variable in self.variables
            for update in updates.get(variable, ())
        }
        ops = self.ancestors(roots, fed) if updating else ()
        return list(dict.fromkeys(updating[op] for op in ops if op in updating))

    @cached_property
    def earlier_gradients(self) -> Mapping[str, frozenset[str]]:
        """The other variables whose gradients a step applies before it computes a gradient.

        Variables are left out if their gradient depends on no update.
        """
        sources = {
            variable: {producer_of(part) for part in gradient if part}
            for variable, gradient in self.gradients.by_variable.items()
        }
        if sources.keys().isdisjoint(self.updated_by(self.gradients.tensors, ())):
            return {}
        found = {}
        for variable, own in sources.items():
            behind = {*self.ancestors(own, ())} - own
            applied = sources.keys() & self.updated_by(own, ())
            if earlier := {each for each in applied if sources[each] <= behind}:
                found[variable] = frozenset(earlier)
        return found

    def built_at(self, op: str) -> str:
        """Return the source line of an op, as part of a message; ``""`` if it is not known."""
        where = self.placement.where(op)
        return f", built at {where}" if where else ""


def make_runnable(
    built: CapturedProgram, devices: Devices, *, cluster: Machine | None = None
) -> RunnableProgram:
    """Check that a program can be run, and rewrite its graph for real or simulated devices.

    Args:
        built: the program.
        devices: ``auto``, ``real`` or ``simulated``.
        cluster: the tasks on which the program runs; by default it runs in this process. With a
            cluster, ``devices`` is ``real`` or ``simulated``.

    Raises:
        InputError: the step that the builder returned is malformed, or the program names a task
            that is not in the cluster.
        CannotRun: there is only a graph and no program; the program names tasks without a cluster;
            it alternates between steps, or its step creates variables with unknown initial values;
            or real devices are missing.
    """
    if not built.program:
        raise CannotRun(
            f"{built.short_name} cannot be run: it is a graph without its program",
            "name the program that builds it: train.py:build",
        )
    if built.step_count > 1:
        raise CannotRun(
            f"{built.short_name} alternates between {built.step_count} different training steps, "
            "and only a single step can be compared"
        )
    placement = built.requested
    named = [op.requested for op in placement.ops.values() if op.requested.is_gpu]
    most_gpus = max([built.gpus, *((device.index or 0) + 1 for device in named)])
    if cluster is not None:
        simulated = devices == "simulated"
        _check_tasks(placement, cluster)
    else:
        simulated = uses_simulated(most_gpus, devices)
        jobs = {op.requested.job for op in placement.ops.values()} - {None, "localhost"}
        if jobs:
            raise CannotRun(
                f"it names the job {min(map(str, jobs))}: programs of several tasks are not run"
            )
        if devices == "real" and simulated:
            raise CannotRun(
                f"{placement.program} needs {plural(most_gpus, 'real GPU')}, and {gpus_found()}",
                INSTALL_CUDA if usable_gpus() < local_gpus() else "",
            )
    _check_initial_values(built)
    config = session_config(most_gpus, devices)
    config.allow_soft_placement = placement.soft
    graph = _rewrite_graph(built, simulated=simulated, is_cluster=cluster is not None)
    are_gpus_unusable = simulated and devices == "auto" and most_gpus <= local_gpus()
    return RunnableProgram(
        built=built,
        graph=graph,
        simulated=simulated,
        config=config,
        inputs=_declared_inputs(built.step, built.name),
        gradients=find_gradients(placement, graph, built.applied, built.initial),
        unusable_gpus=gpus_found() if are_gpus_unusable else "",
    )


def _check_initial_values(built: CapturedProgram) -> None:
    """Check that the initial value of each variable in a traced step is known."""
    values = built.initial.values
    for variable in built.requested.variables if values else ():
        if variable.name not in values:
            where = built.requested.where(variable.name)
            raise CannotRun(
                f"the first step of {built.short_name} creates {variable.name}"
                f"{f' (built at {where})' if where else ''}, with an initial value that depends "
                "on the step",
                "create it before: a layer with model.build(…), slots with "
                "optimizer.build(model.trainable_variables)",
            )


def _check_tasks(placement: Placement, cluster: Machine) -> None:
    for op in placement.ops.values():
        if lacking := cluster.lacks(op.requested):
            where = placement.where(op.name)
            raise InputError(
                placement.program,
                f"{op.name}{f' (built at {where})' if where else ''} {lacking}",
                cluster.fix_for(op.requested),
            )


def _declared_inputs(step: Step, program: str) -> list[dict[str, str]]:
    """Return the tensors by input name: one mapping for each tower, or one for all."""
    if step.inputs is None:
        return []
    listed: Any = [step.inputs] if isinstance(step.inputs, Mapping) else step.inputs
    if not all(isinstance(mapping, Mapping) for mapping in listed):
        raise InputError(
            program,
            f"its inputs must be mappings, but are {step.inputs!r:.80}",
            "return one mapping of names to placeholders for each tower",
        )
    return [
        {str(key): _tensor_name(tensor, str(key), program) for key, tensor in mapping.items()}
        for mapping in listed
    ]


def _tensor_name(value: Any, key: str, program: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tf.Tensor):
        return str(value.name)
    if isinstance(value, tf.Variable) or component_tensors(value):
        raise CannotRun(
            f"the input '{key}' of {program} is a {type(value).__name__}; rows are fed as arrays"
        )
    raise InputError(
        program,
        f"its input '{key}' must be a placeholder, but is {value!r:.60}",
        "return the placeholder itself",
    )


def _rewrite_graph(built: CapturedProgram, *, simulated: bool, is_cluster: bool) -> tf.Graph:
    """Return the graph of a program, rewritten to run on the devices of this machine.

    Devices are changed in the GraphDef, because a live graph does not give access to the bodies of
    functions. For a cluster, TensorFlow is prevented from copying constants to each task under new
    names.
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
                node.attr["seed2"].i = number + 1  # so that every run draws the same numbers
    replace_collectives(copied, built.name)
    if simulated:
        convert_to_channels_last(copied)
    if is_cluster:
        keep_constants_whole(copied)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(copied, name="")
    return graph


def find_gradients(
    placement: Placement,
    graph: tf.Graph,
    applied: Sequence[AppliedGradient],
    initial: InitialState,
) -> Gradients:
    """Find the gradients that one step of a program applies.

    Args:
        placement: the requested placement of the program.
        graph: the graph of the program, or a copy.
        applied: the gradients that the program declares or passes to an optimizer.
        initial: the initial state. Its ``mirrors`` are copies of variables, and have the same
            gradient as the variable that they mirror. If it has ``values``, the step is traced:
            such a program cannot declare gradients, so no reason suggests that.
    """
    found = Gradients()
    analysis = analyze(placement)
    recorded = {gradient.variable: gradient for gradient in applied}
    for variable, updates in analysis.updates.by_variable.items():
        names = [analysis.flow.names[update.op] for update in updates]
        applies = [name for name in names if is_gradient_update(placement.ops[name].type)]
        found.updates[variable] = names[-1]
        if len(applies) == 1 and not placement.ops[applies[0]].caller:
            found.by_variable[variable] = _gradient_input(graph.get_operation_by_name(applies[0]))
            found.optimizers.add(placement.ops[applies[0]].type)
        elif len(applies) > 1:
            found.unreadable[variable] = (
                f"{len(applies)} ops of one step apply gradients to the variable"
            )
        elif given := recorded.get(variable):
            if given.gradient and _is_of_one_tower(placement, given.gradient, updates):
                found.unreadable[variable] = (
                    "each tower changes its gradient before the gradients are added up"
                )
            elif given.gradient:
                found.by_variable[variable] = given.gradient
            elif given.in_body:
                found.unreadable[variable] = (
                    "the gradient is applied inside a branch, loop or function"
                )
            if given.optimizer:
                found.optimizers.add(given.optimizer)
        elif variable in gradient_flow(placement).trained and variable not in initial.mirrors:
            written = written_updates(placement)(variable)
            if isinstance(written, WrittenUpdate):
                found.written[variable] = written
                found.by_variable[variable] = gradient_at(written, written.default)
                found.optimizers.add(_PROPORTIONAL if written.proportional else names[-1])
            else:
                found.unreadable[variable] = (
                    written
                    if initial.values
                    else f"{written}; return {{'gradients': [(gradient, variable), …]}}"
                )
    return found


def gradient_at(written: WrittenUpdate, stage: Stage) -> Gradient:
    """Return a stage of the gradient of an update that is written out."""
    return Gradient(with_output(stage.tensor), written.indices and with_output(written.indices))


def _is_of_one_tower(placement: Placement, gradient: Gradient, updates: Sequence[Update]) -> bool:
    """Whether an optimizer gets the gradient of one tower, but its updates use several towers."""
    analysis = analyze(placement)
    behind = analysis.towers_behind[analysis.flow.number[producer_of(gradient.values)]]
    flow = gradient_flow(placement)
    return (behind & analysis.all_towers).bit_count() == 1 and any(
        flow.towers(update).bit_count() > 1 for update in updates
    )


def _gradient_input(op: tf.Operation) -> Gradient:
    """Return the gradient input of an apply op (names from core/ops/training_ops.cc)."""
    names = [argument.name for argument in op.op_def.input_arg]
    values = op.inputs[names.index("delta" if "delta" in names else "grad")].name
    return Gradient(values, op.inputs[names.index("indices")].name if "indices" in names else "")


def uses_simulated(gpus: int, devices: Devices = "auto") -> bool:
    """Whether CPU devices simulate this number of GPUs.

    ``auto`` takes real GPUs if there are enough, ``simulated`` never does.
    """
    return devices == "simulated" or usable_gpus() < gpus


def usable_gpus() -> int:
    """The number of GPUs that this process may use and that TensorFlow finds.

    TensorFlow finds no GPU if a library of CUDA is missing.
    """
    here = local_gpus()
    return min(here, len(tf.config.list_physical_devices("GPU"))) if here else 0


def gpus_found() -> str:
    """A clause with the number of GPUs of this machine, and of GPUs that TensorFlow finds."""
    here, usable = local_gpus(), usable_gpus()
    if usable < here:
        return f"TensorFlow finds only {usable} of the {plural(here, 'GPU')} of this machine"
    return f"this machine has {usable or 'none'}"


def session_config(gpus: int, devices: Devices = "auto") -> Any:
    """Return the ``ConfigProto`` of a session with real or simulated GPUs; placement is strict."""
    if uses_simulated(gpus, devices):
        return tf1.ConfigProto(device_count={"CPU": gpus + 1, "GPU": 0})
    return tf1.ConfigProto(gpu_options=tf1.GPUOptions(allow_growth=True))


@contextlib.contextmanager
def gpu_scope(gpus: int, *, devices: Devices = "auto") -> Iterator[Any]:
    """Let ops that are built in this block run on this number of real or simulated GPUs.

    Yields:
        The ``ConfigProto`` for the session that runs the graph; the caller may change it.
    """
    is_simulated = uses_simulated(gpus, devices)
    scope = tf1.device(lambda op: to_simulated(op.device))
    with scope if is_simulated else contextlib.nullcontext():
        yield session_config(gpus, devices)


_AUTOTUNE = "TF_CUDNN_USE_AUTOTUNE"  # TensorFlow reads it when a session creates an op


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute products and convolutions of float32 on GPUs in full precision.

    TF32, which has 10 bits of fraction, is disabled. So is the choice of the fastest algorithm for
    each convolution: the choice depends on the number of rows, and algorithms round differently.
    On an H200, the gradients of two towers with a small convolutional network differed from one
    GPU's by up to 3,700 eps with this choice, and by at most 3 eps without it. If this process has
    trained with the same shapes before, the algorithms that were chosen then remain in use.
    """
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    autotune = os.environ.get(_AUTOTUNE)
    settings.enable_tensor_float_32_execution(False)
    os.environ[_AUTOTUNE] = "0"
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)
        if autotune is None:
            os.environ.pop(_AUTOTUNE, None)
        else:
            os.environ[_AUTOTUNE] = autotune
