"""Run a program in a session: its gradients, its steps and its variables."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.capture.eager.devices import is_gpu_only_error
from placement_checks.core.devices import Device
from placement_checks.core.errors import CannotRun, InputError, graph_error_causes
from placement_checks.core.measurement import Arrays
from placement_checks.core.placement import producer_of
from placement_checks.core.target import Script, uses_gpus
from placement_checks.run.runnable import RunnableProgram
from placement_checks.util.progress import current_steps

tf1 = tf.compat.v1


_MAX_BYTES = 1 << 23  # bytes that are read or assigned at once; one variable may be larger
_ITEM_SIZE = 8  # bytes of an element, at most
_MAX_FETCHED = 2000  # tensors that one run fetches
_FROM_TASK = re.compile(r"(?:[A-Z_]+: )?From (/job:\w+)/replica:\d+(/task:\d+):\n")


class TimeLimitExceeded(CannotRun):
    """The time limit of all runs is exceeded."""


class ProgramSession:
    """A session of one program.

    The graph is optimized only if steps are timed. Grappler turns shapes into control edges, which
    would run an input pipeline although its outputs are fed.
    """

    def __init__(
        self,
        program: RunnableProgram,
        seconds: float,
        *,
        threads: int = 0,
        timed: bool = False,
        target: str = "",
    ) -> None:
        """Open the session.

        Args:
            program: the program.
            seconds: the time limit of one run.
            threads: the number of threads that run ops, each op on one core; 0 for TensorFlow's
                default. The first session of a process fixes the threads of a single op, unless
                ``TF_OVERRIDE_GLOBAL_THREADPOOL`` is set before
                (core/common_runtime/local_device.cc).
            timed: whether the graph is optimized, as in the user's own session.
            target: the master of a cluster; this process by default.
        """
        self.program = program
        self._seconds = seconds
        self._outer_steps = len(current_steps())
        self._timeout_fix = (
            "check that all tasks of the cluster run, or allow more seconds or fewer rows"
            if target
            else "take fewer rows"
            if timed
            else "allow more time, --set gradients-equal.seconds=N, or use fewer rows, "
            "--set gradients-equal.rows=N"
        )
        config = type(program.config)()
        config.CopyFrom(program.config)
        if not timed:
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            config.graph_options.optimizer_options.opt_level = -1
        if threads:
            config.inter_op_parallelism_threads = threads
            config.intra_op_parallelism_threads = 1
            config.use_per_session_threads = True
        self._session = tf1.Session(target, graph=program.graph, config=config)

    def __enter__(self) -> ProgramSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def run(
        self,
        fetches: Any,
        feeds: Arrays | None = None,
        metadata: Any = None,
        *,
        traced: bool = False,
    ) -> Any:
        """Run a part of the graph.

        Args:
            fetches: the names of the tensors and ops to run, in any nested structure.
            feeds: arrays by tensor name.
            metadata: a ``RunMetadata`` to fill with partition graphs.
            traced: whether to fill ``metadata`` with step statistics, too.

        Raises:
            InputError: the run failed, or exceeded the time limit of one run.
            CannotRun: an op has no CPU kernel.
            TimeLimitExceeded: the time limit of all runs is exceeded.
        """
        left = self.program.limit.left
        if left <= 0:
            raise self._time_limit_exceeded()
        level = tf1.RunOptions
        # GPUs need the hardware tracer.
        full = level.SOFTWARE_TRACE if self.program.simulated else level.FULL_TRACE
        options = tf1.RunOptions(
            timeout_in_ms=math.ceil(1000 * min(self._seconds, left)),
            output_partition_graphs=metadata is not None,
            trace_level=full if traced else level.NO_TRACE,
        )
        name = self.program.name
        try:
            return self._session.run(fetches, feeds, options, metadata)
        except tf.errors.DeadlineExceededError:
            if left <= self._seconds:
                raise self._time_limit_exceeded() from None
            too_long = f"one run of it took longer than {self._seconds:g} s"
            raise InputError(name, too_long, self._timeout_fix) from None
        except (tf.errors.OpError, ValueError, TypeError) as error:
            reason, where = self._explain(error)
            if self.program.simulated and is_gpu_only_error(reason):
                reason = reason.partition(" used by ")[0]  # and attributes in any order
                raise CannotRun(f"{name} cannot run on CPU devices: {reason}{where}") from None
            raise InputError(name, f"running it failed: {reason}{where}") from None

    def _time_limit_exceeded(self) -> TimeLimitExceeded:
        """Return the error that ends a comparison without --reference."""
        script = self.program.built.program
        reference = "TARGET, your program for one GPU"
        if (
            isinstance(script, Script)
            and any(map(uses_gpus, script.settings.args))
            and not script.settings.let
        ):
            reference = shlex.quote(script.for_gpus(1).name)
        reached = ": ".join(current_steps()[self._outer_steps :])
        return TimeLimitExceeded(
            f"the comparison was ended by its time limit, {self.program.limit.seconds:g} s"
            f"{reached and f', at: {reached}'}",
            f"there is no time limit with --reference {reference}",
        )

    def _explain(self, error: Exception) -> tuple[str, str]:
        """Return the sentence that describes an error, and the op at fault with its line."""
        message = str(getattr(error, "message", error)).strip()
        prefix = ""
        if task := _FROM_TASK.match(message):
            prefix, message = f"{task[1]}{task[2]}: ", message[task.end() :].strip()
        lines = graph_error_causes(message) or message.splitlines() or [type(error).__name__]
        reason = f"{prefix}{lines[0].strip()}"
        op = getattr(error, "op", None)
        return reason, f" (op {op.name}{self.program.built_at(op.name)})" if op is not None else ""

    def initialize(self, values: Arrays) -> None:
        """Initialize all variables, then assign the given values.

        Variables that are initialized from other variables, such as a target network, use the
        given values. All copies of a mirrored variable start equal, even if the program creates
        the copies without a strategy: such a program may itself copy the first copy to the others
        after initialization.
        """
        initial = self.program.built.initial
        values = self._with_copies(values)
        self.load({name: values.get(name, value) for name, value in initial.values.items()})
        for kind in (initial.initializers, initial.local_initializers):
            self.run(list(kind.values()))
            self.load({name: value for name, value in values.items() if name in kind})
            if values:
                self.run([op for name, op in kind.items() if name not in values])
        self.run(list(initial.tables))
        copies = {
            copy: first
            for copy, first in self._manual_copies.items()
            if first not in values and first in self.program.variables
        }
        if copies:
            read = self.run({name: self._reads[name] for name in copies.values()})
            self.load({copy: read[first] for copy, first in copies.items()})

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Return the values of all variables, by name."""
        return {name: value for part in self.read() for name, value in part.items()}

    def read(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the values of all variables, by name, in parts of some megabytes."""
        for names in self._parts:
            values = self.run({name: self._reads[name] for name in names})
            yield {name: np.asarray(value) for name, value in values.items()}

    def load(self, values: Arrays) -> None:
        """Assign values to variables and their copies; unknown names are ignored."""
        self._assign(self._with_copies(values))

    def _assign(self, values: Arrays) -> None:
        for part in self._parts:
            if names := [name for name in part if name in values]:
                ops = [self._assigns[name][0] for name in names]
                self.run(ops, {self._assigns[name][1]: values[name] for name in names})

    @cached_property
    def _parts(self) -> Sequence[Sequence[str]]:
        """The variables in parts of some megabytes, because TensorFlow copies a whole part."""
        parts: list[list[str]] = []
        size = _MAX_BYTES
        for variable in self.program.placement.variables:
            if variable.name in self.program.variables:
                if size >= _MAX_BYTES:
                    parts.append([])
                    size = 0
                parts[-1].append(variable.name)
                size += math.prod(n or 1 for n in variable.shape or ()) * _ITEM_SIZE
        return parts

    @cached_property
    def _reads(self) -> Mapping[str, Any]:
        """The tensor with the value of each variable, created at the first access."""
        reads = {}
        with self.program.graph.as_default() as graph:
            for name, dtype in self.program.variables.items():
                variable = graph.get_tensor_by_name(f"{name}:0")
                if variable.dtype == tf.resource:
                    dtype = tf.dtypes.as_dtype(dtype)
                    variable = tf.raw_ops.ReadVariableOp(resource=variable, dtype=dtype)
                reads[name] = variable
        return reads

    @cached_property
    def _assigns(self) -> Mapping[str, tuple[Any, Any]]:
        """For each variable, the op that assigns it and the placeholder for its value."""
        assigns = {}
        with self.program.graph.as_default() as graph:
            for name, dtype in self.program.variables.items():
                variable, value = graph.get_tensor_by_name(f"{name}:0"), tf1.placeholder(dtype)
                if variable.dtype == tf.resource:
                    assign = tf.raw_ops.AssignVariableOp(resource=variable, value=value)
                else:
                    assign = tf.raw_ops.Assign(ref=variable, value=value, validate_shape=False).op
                assigns[name] = assign, value
        return assigns

    def _with_copies(self, values: Arrays) -> Arrays:
        """Return the values, with the values of first copies repeated for the other copies.

        Copies of a strategy may have values of their own.
        """
        mirrors, manual = (
            {copy: values[first] for copy, first in copies.items() if first in values}
            for copies in (self.program.built.initial.mirrors, self._manual_copies)
        )
        return {**mirrors, **values, **manual}

    @cached_property
    def _manual_copies(self) -> Mapping[str, str]:
        """Copies that the program creates without a strategy, each with its variable's first."""
        return {
            copy: group.copies[min(group.copies)]
            for group in variable_layout(self.program.placement).mirrored
            for copies in (group.copies, group.diverging)
            for tower, copy in copies.items()
            if tower != min(group.copies)
        }

    def evaluate(
        self, fetches: Any, names: Collection[str], feeds: Arrays, metadata: Any = None
    ) -> Any:
        """Run a part of the graph, and restore the variables that this part updates.

        For example, the gradient of a second optimizer depends on the updates of the first one,
        and a layer may move its statistics before its result is used.

        Args:
            fetches: as for `run`.
            names: the names of the fetched tensors.
            feeds: arrays by tensor name.
            metadata: as for `run`.

        Raises:
            InputError: as for `run`.
            CannotRun: as for `run`.
        """
        updated = self.program.updated_by(names, feeds)
        before = self.run({name: self._reads[name] for name in updated}) if updated else {}
        found = self.run(fetches, feeds, metadata)
        self._assign(before)
        return found

    def gradients(
        self, feeds: Arrays, metadata: Any = None, *, only: Collection[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the gradients of variables as dense arrays, by variable name; by default all.

        The variables keep their values.
        """
        fetches = {
            name: tuple(part for part in gradient if part)
            for name, gradient in self.program.gradients.by_variable.items()
            if only is None or name in only
        }
        tensors = [tensor for parts in fetches.values() for tensor in parts]
        fetched = self.evaluate(fetches, tensors, feeds, metadata)
        return {
            name: parts[0] if len(parts) == 1 else self._dense(name, *parts)
            for name, parts in fetched.items()
        }

    def _dense(self, name: str, values: Any, indices: Any) -> npt.NDArray[Any]:
        """Return slices as a dense array; slices of the same index are added up."""
        variables = self.program.placement.variables
        shape: Any = next(variable.shape for variable in variables if variable.name == name)
        if shape is None or None in shape:
            shape = self.run(self._reads[name]).shape
        dense = np.zeros(shape, np.float64)
        np.add.at(dense, indices, np.asarray(values, np.float64))
        return dense.astype(values.dtype)

    def gradient_feeds(self, values: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return feeds that make a step apply these gradients instead of computed gradients."""
        feeds = {}
        for name, value in values.items():
            gradient = self.program.gradients.by_variable[name]
            feeds[gradient.values] = value
            if gradient.indices:
                feeds[gradient.indices] = np.arange(len(value))
        return feeds

    def step(self, feeds: Arrays, metadata: Any = None) -> None:
        """Take one training step; ``metadata`` is filled with partition graphs and statistics."""
        train_op = list(self.program.placement.step.train_op)
        self.run(train_op, feeds, metadata, traced=metadata is not None)

    def prepare_step(self, feeds: Arrays) -> Callable[[], object]:
        """Return a function that takes a training step with little overhead."""
        train_op = list(self.program.placement.step.train_op)
        step = self._session.make_callable(train_op, feed_list=list(feeds))
        return partial(step, *feeds.values())

    def executed_devices(self, feeds: Arrays) -> dict[str, Device]:
        """Run the gradients, and return the device of every op, from the partition graphs.

        If no gradient can be read, a training step is run, which changes variables.
        """
        metadata = tf1.RunMetadata()
        if self.program.gradients.by_variable:
            self.gradients(feeds, metadata)
        else:
            self.run(list(self.program.placement.step.train_op), feeds, metadata)
        return {
            node.name: Device.parse(node.device)
            for part in metadata.partition_graphs
            for node in part.node
        }

    def first_not_finite(self, ops: Iterable[str], feeds: Arrays) -> str | None:
        """Return the first op, in building order, that yields a NaN or an infinity."""
        wanted = set(ops)
        names = [
            tensor.name
            for op in self.program.graph.get_operations()
            if op.name in wanted
            for tensor in op.outputs
            if tensor.dtype.is_floating and tensor.dtype == tensor.dtype.base_dtype
        ]
        for start in range(0, len(names), _MAX_FETCHED):
            part = names[start : start + _MAX_FETCHED]
            for name, value in zip(part, self.fetch(part, feeds), strict=True):
                if value is not None and not np.all(np.isfinite(np.asarray(value, np.float64))):
                    return producer_of(name)
        return None

    def fetch(self, names: Sequence[str], feeds: Arrays) -> Sequence[Any]:
        """Return the values of tensors; None for tensors in a branch that does not run.

        The variables keep their values.
        """
        try:
            return list(self.evaluate(list(names), names, feeds))
        except (InputError, CannotRun):
            if len(names) == 1:
                return [None]
            half = len(names) // 2
            return [*self.fetch(names[:half], feeds), *self.fetch(names[half:], feeds)]
