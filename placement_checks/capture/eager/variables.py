"""Records the variables of eager code: devices, source lines, strategies and initial values.

`record_variables` starts the recording. `step_strategy` and `state_before_step` derive the
strategy and the initial state of a training step from the recorded variables.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.op_types import VARIABLE_HANDLE
from placement_checks.core.program import InitialState
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.tf.distribution import (
    COLLECTIVE_ORDER_FILE,
    replica_values,
    strategy_name,
    variable_strategy,
)
from placement_checks.tf.eager import (
    INITIALIZER_LIST_ARGUMENT,
    eager_device,
    lift_to_outer_graph,
    variable_handle,
)
from placement_checks.tf.graphs import current_stack, kernels_of
from placement_checks.tf.keras import around_keras_variables, tensorflow_variable
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import afterwards, patched
from placement_checks.tf.simulated_devices import requested_name

_GPU_KERNELS = {"GPU", "DEFAULT"}  # device types of kernels; DEFAULT is any device but a CPU
_HOST, _FIRST_GPU = "/device:CPU:0", "/device:CPU:1"  # CPU:1 simulates GPU:0


@dataclass
class RecordedVariable:
    """A resource variable of TensorFlow."""

    variable: Any  # the `tf.Variable`
    device: str  # the CPU device of the variable. CPU devices other than CPU:0 simulate GPUs.
    stack: Sequence[Any]  # the stack frames of its creation, the outermost first
    # The distributed variable of a strategy that contains this variable, if any.
    part_of: Any = None
    replica: int = 0  # the index of this variable in the distributed variable
    path: str = ""  # the name that Keras gives the variable; `""` without Keras
    # The symbolic initial value, if a function creates the variable while it is traced; otherwise
    # None.
    first_value: Any = None

    @property
    def whole(self) -> Any:
        """The distributed variable that contains this variable, or the variable itself."""
        return self.variable if self.part_of is None else self.part_of

    @property
    def name(self) -> str:
        """The name of the whole variable."""
        return self.path or str(self.whole.name).partition(":")[0]

    @property
    def is_made_in_step(self) -> bool:
        """Whether a function creates the variable in its first call, which is not executed."""
        return self.first_value is not None and not self.variable.is_initialized()

    @property
    def is_aggregated_on_read(self) -> bool:
        """Whether each replica updates its own part, and a read aggregates them."""
        return self.whole.synchronization is tf.VariableSynchronization.ON_READ

    @property
    def orders_collectives(self) -> bool:
        """Whether the strategy uses the variable only to order the collectives of a device."""
        return any(frame.filename.endswith(COLLECTIVE_ORDER_FILE) for frame in self.stack)


class VariableNotes:
    """The variables of a program, by handle."""

    def __init__(self) -> None:
        self._recorded: dict[Any, RecordedVariable] = {}  # by references to handles
        self._devices: dict[Any, str] = {}

    def by_handle(self, handle: Any) -> RecordedVariable | None:
        """The variable with a handle; None if it was created before the recording."""
        return self._recorded.get(handle.ref())

    def all(self) -> Iterator[RecordedVariable]:
        """The variables, in the order of creation."""
        return iter(self._recorded.values())

    def note_handle(self, handle: Any, device: str) -> None:
        """Record the device of a handle.

        The device scope of a variable in a function ends before the variable is created.
        """
        self._devices[handle.ref()] = device

    def note(self, variable: Any, *_: Any) -> None:
        """Record a new variable."""
        handle = variable_handle(variable)
        if not tf.is_symbolic_tensor(handle) and (key := handle.ref()) not in self._recorded:
            device = self._devices.get(key, handle.device)
            self._recorded[key] = RecordedVariable(variable, device, current_stack())

    def note_parts(self, whole: Any, *_: Any) -> None:
        """Record that a distributed variable consists of several variables."""
        for replica, part in enumerate(replica_values(whole)):
            if recorded := self.by_handle(variable_handle(part)):
                recorded.part_of, recorded.replica = whole, replica

    def note_first_value(self, variable: Any, _: None, options: Mapping[str, Any]) -> None:
        """Record the symbolic initial value of a variable that a function creates.

        ``options`` are the keyword arguments of its constructor. One of them contains each
        variable that the function creates, with its initial value.
        """
        for other, value in options.get(INITIALIZER_LIST_ARGUMENT) or ():
            if other is variable and (recorded := self.by_handle(variable_handle(variable))):
                recorded.first_value = value

    def note_path(self, keras: Any, *_: Any) -> None:
        """Record the name of a Keras variable, for the variable that it wraps."""
        for part in replica_values(tensorflow_variable(keras)):
            if recorded := self.by_handle(variable_handle(part)):
                recorded.path = keras.path


@contextlib.contextmanager
def record_variables() -> Iterator[VariableNotes]:
    """Record the variables that are created in this block.

    A variable without a device scope is created on the same device as on a machine with GPUs: the
    first GPU if there is a GPU kernel for its dtype, otherwise the host.
    """
    notes = VariableNotes()

    def wrap_handle(make: Callable[..., Any]) -> Callable[..., Any]:
        def handle(shape: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                return make(shape, dtype, *args, **kwargs)
            device = eager_device() or (_FIRST_GPU if _has_gpu_kernel(dtype) else _HOST)
            with tf.device(device):
                new = make(shape, dtype, *args, **kwargs)
            notes.note_handle(new, device)
            return new

        return handle

    with (
        patched(Patch.NEW_HANDLE, wrap_handle),
        patched(Patch.NEW_VARIABLE, afterwards(notes.note)),
        patched(Patch.NEW_FUNCTION_VARIABLE, afterwards(notes.note_first_value)),
        patched(Patch.NEW_DISTRIBUTED, afterwards(notes.note_parts)),
        patched(Patch.NEW_AGGREGATING, afterwards(notes.note_parts)),
        around_keras_variables(afterwards(notes.note_path)),
    ):
        yield notes


@cache
def _has_gpu_kernel(dtype: Any) -> bool:
    number = tf.dtypes.as_dtype(dtype).base_dtype.as_datatype_enum
    return any(
        number in constraint.allowed_values.list.type
        for kernel in kernels_of(VARIABLE_HANDLE)
        if kernel.device_type in _GPU_KERNELS
        for constraint in kernel.constraint
        if constraint.name == "dtype"
    )


def step_strategy(
    strategies: Sequence[Any], variables: Mapping[str, RecordedVariable]
) -> Strategy | None:
    """Return the strategy that created most variables of a step; None without a strategy."""
    if not strategies:
        return None
    used = Counter(map(strategy_id, variables.values()))
    strategy = max(strategies, key=lambda each: used[id(each)])
    devices = strategy.extended.worker_devices
    replicas = [Device.parse(requested_name(device)) for device in devices]
    outside = [name for name, recorded in variables.items() if strategy_id(recorded) is None]
    made_in_step = [name for name, recorded in variables.items() if recorded.is_made_in_step]
    return Strategy(
        strategy_name(strategy),
        replicas,
        dict(_copies(variables, len(replicas))),
        outside,
        strategy.num_replicas_in_sync,  # includes the replicas of other workers
        made_in_step,
    )


def strategy_id(recorded: RecordedVariable) -> int | None:
    """The id of the strategy that created a variable in its scope; None without a strategy."""
    strategy = variable_strategy(recorded.whole)
    return None if strategy is None else id(strategy)


def _copies(
    variables: Mapping[str, RecordedVariable], replicas: int
) -> Iterator[tuple[str, Copy]]:
    """The names of variables that are copies for one replica, each with its `Copy`."""
    first = _first_parts(variables)
    for name, recorded in variables.items():
        if recorded.part_of is None:
            if replicas == 1 and strategy_id(recorded) is not None:
                yield name, Copy(name, 0)
        elif isinstance(recorded.part_of, tf.distribute.DistributedValues):
            in_sync = recorded.part_of.synchronization is not tf.VariableSynchronization.ON_READ
            yield name, Copy(first.get(id(recorded.part_of), name), recorded.replica, in_sync)


def _first_parts(variables: Mapping[str, RecordedVariable]) -> Mapping[int, str]:
    """The name of the part for the first replica, by the id of the distributed variable."""
    return {
        id(recorded.part_of): name
        for name, recorded in variables.items()
        if recorded.part_of is not None and not recorded.replica
    }


# The device scopes of a step may name devices that do not exist in a new session.
_ON_ANY_DEVICE = tf.compat.v1.ConfigProto(allow_soft_placement=True)


def state_before_step(variables: Mapping[str, RecordedVariable]) -> InitialState:
    """Return the values of variables before a step, and which of them are copies of another."""
    first = _first_parts(variables)
    mirrors = {
        name: first[id(recorded.part_of)]
        for name, recorded in variables.items()
        if recorded.replica and id(recorded.part_of) in first
    }
    unsynchronized = frozenset(
        name for name, recorded in variables.items() if recorded.is_aggregated_on_read
    )
    values = _values_from_step(variables)
    for name, recorded in variables.items():
        # Reading an uninitialized variable may return an empty array instead of raising.
        if recorded.variable.is_initialized():
            values[name] = np.array(recorded.variable.read_value())
    for copy, mirrored in mirrors.items():
        if copy not in values and mirrored in values:
            values[copy] = values[mirrored]
    return InitialState(values=values, mirrors=mirrors, unsynchronized=unsynchronized)


def _values_from_step(variables: Mapping[str, RecordedVariable]) -> dict[str, Any]:
    """Initial values of variables created in the step, if they do not depend on its inputs."""
    with tf.Graph().as_default() as graph:
        first = {
            name: value
            for name, recorded in variables.items()
            if recorded.first_value is not None
            and (value := lift_to_outer_graph(recorded.first_value, graph)) is not None
        }
        if not first:
            return {}
        with tf.compat.v1.Session(config=_ON_ANY_DEVICE) as session:
            return dict(session.run(first))
