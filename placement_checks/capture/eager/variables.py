"""Notes which variables eager code makes, what each is for, and which device it asks for.

What is known of the strategy that a step was traced for.

The values that the variables of a step have before it.
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
    around_distributed_variables,
    replica_values,
    strategy_name,
    variable_strategy,
)
from placement_checks.tf.eager import (
    INITIALIZER_LIST_ARGUMENT,
    around_function_variables,
    around_handles,
    around_variables,
    eager_device,
    lift_to_outer_graph,
    variable_handle,
)
from placement_checks.tf.graphs import current_stack, kernels_of
from placement_checks.tf.keras import around_keras_variables, tensorflow_variable
from placement_checks.tf.simulated_devices import requested_name

_OF_GPUS = {"GPU", "DEFAULT"}  # the device types of kernels; the latter is for all but CPUs
_HOST, _FIRST_GPU = "/device:CPU:0", "/device:CPU:1"  # what stands in for it


@dataclass
class NotedVariable:
    """A resource variable of TensorFlow.

    Attributes:
        variable: itself.
        device: where it is, as what stands in for GPUs.
        stack: the frames in which it was made, the outermost first.
        of: the variable of a strategy that it is a part of; None for one of its own.
        replica: which of the parts it is.
        path: the name that Keras gives it; ``""`` where it is not Keras's.
        first_value: the tensor of one which a function makes as it is traced; else None.
    """

    variable: Any
    device: str
    stack: Sequence[Any]
    of: Any = None
    replica: int = 0
    path: str = ""
    first_value: Any = None

    @property
    def name(self) -> str:
        """What it is called, without the number of a copy."""
        named = self.variable if self.of is None else self.of
        return self.path or str(named.name).partition(":")[0]

    @property
    def is_made_in_step(self) -> bool:
        """Whether a function makes it in its first call, and has not yet."""
        return self.first_value is not None and not self.variable.is_initialized()

    @property
    def is_brought_together(self) -> bool:
        """Whether replicas change it apart, and it is brought together when it is read."""
        whole = self.variable if self.of is None else self.of
        return whole.synchronization is tf.VariableSynchronization.ON_READ

    @property
    def orders_collectives(self) -> bool:
        """Whether it only orders the sums that a strategy takes on one device."""
        return any(frame.filename.endswith(COLLECTIVE_ORDER_FILE) for frame in self.stack)


class VariableNotes:
    """The variables that were made, by their handles."""

    def __init__(self) -> None:
        # The handles are kept, so that their ids stay theirs.
        self._noted: dict[int, tuple[Any, NotedVariable]] = {}
        self._devices: dict[int, tuple[Any, str]] = {}

    def of_handle(self, handle: Any) -> NotedVariable | None:
        """The variable of a handle; None where it was made before."""
        noted = self._noted.get(id(handle))
        return noted[1] if noted else None

    def all(self) -> Iterator[NotedVariable]:
        """The variables, in the order in which they were made."""
        return (noted for _, noted in self._noted.values())

    def note_handle(self, handle: Any, device: str) -> None:
        """Note where a handle is; the scope is left when a function's variable is made."""
        self._devices[id(handle)] = handle, device

    def note(self, variable: Any) -> None:
        """Note a variable that was just made."""
        handle = variable_handle(variable)
        if not tf.is_symbolic_tensor(handle) and id(handle) not in self._noted:
            _, device = self._devices.get(id(handle), (handle, handle.device))
            noted = NotedVariable(variable, device, current_stack())
            self._noted[id(handle)] = handle, noted

    def note_parts(self, whole: Any) -> None:
        """Note what a strategy has made of several variables."""
        for replica, part in enumerate(replica_values(whole)):
            if noted := self.of_handle(variable_handle(part)):
                noted.of, noted.replica = whole, replica

    def note_first_value(self, variable: Any, added: Sequence[tuple[Any, Any]]) -> None:
        """Note what a variable of a function begins with."""
        for other, value in added:
            if other is variable and (noted := self.of_handle(variable_handle(variable))):
                noted.first_value = value

    def note_path(self, keras: Any, variable: Any) -> None:
        """Note which variable of Keras one of TensorFlow is."""
        for part in replica_values(variable):
            if noted := self.of_handle(variable_handle(part)):
                noted.path = keras.path


@contextlib.contextmanager
def noting_variables() -> Iterator[VariableNotes]:
    """Note the variables that are made in this block.

    One that asks for no device is made where a machine with GPUs makes it: on the first GPU, where
    that has a kernel for its dtype.
    """
    notes = VariableNotes()

    def handle(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(shape: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                return make(shape, dtype, *args, **kwargs)
            device = eager_device() or (_FIRST_GPU if _has_gpu_kernel(dtype) else _HOST)
            with tf.device(device):
                new = make(shape, dtype, *args, **kwargs)
            notes.note_handle(new, device)
            return new

        return made

    def variable(make: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            notes.note(self)

        return init

    def distributed(make: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            notes.note_parts(self)

        return init

    def of_function(make: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            notes.note_first_value(self, kwargs.get(INITIALIZER_LIST_ARGUMENT) or ())

        return init

    def keras(initialize: Callable[..., None]) -> Callable[..., None]:
        def initialized(self: Any, value: Any) -> None:
            initialize(self, value)
            notes.note_path(self, tensorflow_variable(self))

        return initialized

    with (
        around_handles(handle),
        around_variables(variable),
        around_function_variables(of_function),
        around_distributed_variables(distributed),
        around_keras_variables(keras),
    ):
        yield notes


@cache
def _has_gpu_kernel(dtype: Any) -> bool:
    """Whether GPUs have variables of a dtype."""
    number = tf.dtypes.as_dtype(dtype).base_dtype.as_datatype_enum
    return any(
        number in constraint.allowed_values.list.type
        for kernel in kernels_of(VARIABLE_HANDLE)
        if kernel.device_type in _OF_GPUS
        for constraint in kernel.constraint
        if constraint.name == "dtype"
    )


def strategy_of(made: Sequence[Any], variables: Mapping[str, NotedVariable]) -> Strategy | None:
    """The strategy of a step; None where the program made none.

    Args:
        made: those that the program made.
        variables: those of the step, by name.
    """
    if not made:
        return None
    used = Counter(map(made_by, variables.values()))
    strategy = max(made, key=lambda each: used[id(each)])
    devices = strategy.extended.worker_devices
    replicas = [Device.parse(requested_name(device)) for device in devices]
    outside = [name for name, noted in variables.items() if made_by(noted) is None]
    made_in_step = [name for name, noted in variables.items() if noted.is_made_in_step]
    return Strategy(
        strategy_name(strategy),
        replicas,
        dict(_copies(variables, len(replicas))),
        outside,
        strategy.num_replicas_in_sync,  # a worker's has more than those of its own devices
        made_in_step,
    )


def made_by(noted: NotedVariable) -> int | None:
    """The strategy in whose scope a variable was made, by its id."""
    strategy = variable_strategy(noted.variable if noted.of is None else noted.of)
    return None if strategy is None else id(strategy)


def _copies(variables: Mapping[str, NotedVariable], replicas: int) -> Iterator[tuple[str, Copy]]:
    """The variables that replicas have for themselves, by name."""
    first = {
        id(noted.of): name
        for name, noted in variables.items()
        if noted.of is not None and not noted.replica
    }
    for name, noted in variables.items():
        if noted.of is None:
            if replicas == 1 and made_by(noted) is not None:
                yield name, Copy(name, 0)
        elif isinstance(noted.of, tf.distribute.DistributedValues):
            in_sync = noted.of.synchronization is not tf.VariableSynchronization.ON_READ
            yield name, Copy(first.get(id(noted.of), name), noted.replica, in_sync)


# The scopes of a step name devices that a session of its own need not have.
_ON_ANY_DEVICE = tf.compat.v1.ConfigProto(allow_soft_placement=True)


def values_before(variables: Mapping[str, NotedVariable]) -> InitialState:
    """The first values of the variables of a step, and which are copies.

    Args:
        variables: by name.
    """
    first = {
        id(noted.of): name
        for name, noted in variables.items()
        if noted.of is not None and not noted.replica
    }
    mirrors = {
        name: first[id(noted.of)]
        for name, noted in variables.items()
        if noted.replica and id(noted.of) in first
    }
    unsynchronised = frozenset(
        name for name, noted in variables.items() if noted.is_brought_together
    )
    values = {**_of_functions(variables), **_of_variables(variables)}
    for copy, of in mirrors.items():
        if copy not in values and of in values:
            values[copy] = values[of]
    return InitialState(values=values, mirrors=mirrors, unsynchronised=unsynchronised)


def _of_variables(variables: Mapping[str, NotedVariable]) -> dict[str, Any]:
    """The values of those that have one."""
    # To read one without a value may yield an empty array, and no error.
    return {
        name: np.array(noted.variable.read_value())
        for name, noted in variables.items()
        if noted.variable.is_initialized()
    }


def _of_functions(variables: Mapping[str, NotedVariable]) -> dict[str, Any]:
    """What the step gives those that it makes, where that hangs on nothing which it is given."""
    with tf.Graph().as_default() as graph:
        first = {
            name: value
            for name, noted in variables.items()
            if noted.first_value is not None
            and (value := lift_to_outer_graph(noted.first_value, graph)) is not None
        }
        if not first:
            return {}
        with tf.compat.v1.Session(config=_ON_ANY_DEVICE) as session:
            return dict(session.run(first))
