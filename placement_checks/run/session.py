"""Runs a program: its gradients, its steps, its variables, and where its ops ran.

The ops that read and assign the variables of a program, whichever kind they are.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.capture.eager.devices import is_gpu_only_error
from placement_checks.core.devices import Device
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.script import Script, uses_gpus
from placement_checks.run.runnable import RunnableProgram

_MAX_BYTES = 1 << 23  # of variables that are read or assigned at once, but for one
_MAX_ITEM = 8


class VariableOps:
    """Ops that are added to the graph of a program when they are first asked for."""

    def __init__(self, program: RunnableProgram) -> None:
        self._program = program

    @cached_property
    def parts(self) -> Sequence[Sequence[str]]:
        """The variables in parts of some megabytes: TensorFlow copies what it gives and takes."""
        parts: list[list[str]] = []
        size = _MAX_BYTES
        for variable in self._program.placement.variables:
            if variable.name in self._program.variables:
                if size >= _MAX_BYTES:
                    parts.append([])
                    size = 0
                parts[-1].append(variable.name)
                size += math.prod(n or 1 for n in variable.shape or ()) * _MAX_ITEM
        return parts

    @cached_property
    def reads(self) -> Mapping[str, Any]:
        """For each variable the tensor of its value."""
        return {name: self._read(name) for name in self._program.variables}

    def _read(self, name: str) -> Any:
        holder = self._program.graph.get_tensor_by_name(f"{name}:0")
        if holder.dtype != tf.resource:
            return holder
        dtype = tf.dtypes.as_dtype(self._program.variables[name])
        with self._program.graph.as_default():
            return tf.raw_ops.ReadVariableOp(resource=holder, dtype=dtype)

    @cached_property
    def assigns(self) -> Mapping[str, tuple[Any, Any]]:
        """For each variable the op that assigns it, and the placeholder for its value."""
        return {name: self._assign(name) for name in self._program.variables}

    def _assign(self, name: str) -> tuple[Any, Any]:
        holder = self._program.graph.get_tensor_by_name(f"{name}:0")
        with self._program.graph.as_default():
            value = tf1.placeholder(self._program.variables[name])
            if holder.dtype == tf.resource:
                return tf.raw_ops.AssignVariableOp(resource=holder, value=value), value
            return tf.raw_ops.Assign(ref=holder, value=value, validate_shape=False).op, value


tf1 = tf.compat.v1

Values = Mapping[str, npt.NDArray[Any]]
# The lines around the sentence of an error that says what is wrong.
_AROUND = re.compile(
    r"Graph execution error:|Detected at node |\s+File |Node: |\d+ root error|=+$|\s*$"
)
_OF_TASK = re.compile(r"(?:[A-Z_]+: )?From (/job:\w+)/replica:\d+(/task:\d+):$")
_NUMBERED = re.compile(r"\s*\(\d+\) [A-Z_]+: ")
_MAX_FETCHED = 2000


class ProgramSession:
    """A session of one program.

    Its ops run as they were built, without graph optimisation: Grappler would make control edges
    out of shapes, and so run a pipeline that is fed around. To be timed, it is optimised as in
    the user's own session.
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
            program: what runs.
            seconds: that one run may take.
            threads: how many run ops, each of which then computes on one core; 0 for TensorFlow's
                own choice. What an op computes on is settled for the process by its first session,
                unless ``TF_OVERRIDE_GLOBAL_THREADPOOL`` was set before (core/common_runtime/
                local_device.cc).
            timed: whether graph optimisation is left on.
            target: the master of a cluster; this process by default.
        """
        self.program = program
        self._seconds = seconds
        self._timeout_fix = (
            "do all tasks of the cluster run? Else give it more seconds, or fewer rows"
            if target
            else "take fewer rows"
            if timed
            else "give it more with --set gradients-equal.seconds=N, or fewer rows with "
            "gradients-equal.rows=N"
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
        self._variables = VariableOps(program)
        self._session = tf1.Session(target, graph=program.graph, config=config)

    def __enter__(self) -> ProgramSession:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def run(
        self,
        fetches: Any,
        feeds: Values | None = None,
        metadata: Any = None,
        *,
        traced: bool = False,
    ) -> Any:
        """Run a part of the graph; what to fetch and to feed is known by name.

        Raises:
            InputError: it failed, or took too long.
            CannotRun: an op of it runs on no CPU, or the time for all runs is over.
        """
        left = self.program.ends_at - time.monotonic()
        if left <= 0:
            raise self._over_time()
        options = tf1.RunOptions(
            timeout_in_ms=math.ceil(1000 * min(self._seconds, left)),
            output_partition_graphs=metadata is not None,
            trace_level=self._trace_level if traced else tf1.RunOptions.NO_TRACE,
        )
        name = self.program.name
        try:
            return self._session.run(fetches, feeds, options, metadata)
        except tf.errors.DeadlineExceededError:
            if self.program.ends_at < math.inf:
                raise self._over_time() from None
            raise InputError(
                name,
                f"one run of it took longer than {self._seconds:g} s",
                self._timeout_fix,
            ) from None
        except (tf.errors.OpError, ValueError, TypeError) as error:
            reason, where = self._explained(error)
            if self.program.simulated and is_gpu_only_error(reason):
                raise CannotRun(f"{name} cannot run on CPU devices: {reason}{where}") from None
            raise InputError(name, f"running it failed: {reason}{where}") from None

    def _over_time(self) -> CannotRun:
        """The end of a comparison that nobody asked for, with what asks for it."""
        script = self.program.built.program
        reference = "and a program for one GPU"
        if isinstance(script, Script) and any(map(uses_gpus, script.args)) and not script.let:
            reference = shlex.quote(script.for_gpus(1).name)
        return CannotRun(
            "comparison skipped: it would exceed the time limit; pass --reference "
            f"{reference} to lift it"
        )

    def _explained(self, error: Exception) -> tuple[str, str]:
        """The sentence of an error that says what is wrong, and the op at fault with its line."""
        message = str(getattr(error, "message", error)).strip()
        lines = message.splitlines() or [type(error).__name__]
        sentences = [line for line in lines if not _AROUND.match(line)] or lines[:1]
        reason = _NUMBERED.sub("", sentences[0]).strip()
        if (task := _OF_TASK.match(reason)) and sentences[1:]:
            reason = f"{task[1]}{task[2]}: {sentences[1]}"
        op = getattr(error, "op", None)
        if op is None:
            return reason, ""
        where = self.program.placement.where(op.name)
        at = f", built at {where}" if where else ""
        return reason, f" (op {op.name}{at})"

    def begin(self, values: Values) -> None:
        """Initialize all variables, then set the given ones.

        Variables initialized from others, such as a target network, use the given values. The
        copies of a mirrored variable start equal, whether a strategy keeps them or the program
        does, which may copy the first one to the others in an op of its own after initialization.
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
        unset = {copy: of for copy, of in self._own_copies.items() if of not in values}
        if unset:
            reads = self._variables.reads
            first = self.run({of: reads[of] for of in set(unset.values()) if of in reads})
            self.load({copy: first[of] for copy, of in unset.items() if of in first})

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """The values of all variables, by name; they stay as they are."""
        return {name: value for part in self.read() for name, value in part.items()}

    def read(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """The values of all variables, of some after others where they are large."""
        for names in self._variables.parts:
            yield self.run({name: self._variables.reads[name] for name in names})

    def load(self, values: Values) -> None:
        """Give variables values, and so their copies; what the program has not is left out."""
        values = self._with_copies(values)
        assigns = self._variables.assigns
        for part in self._variables.parts:
            if names := [name for name in part if name in values]:
                ops = [assigns[name][0] for name in names]
                self.run(ops, {assigns[name][1]: values[name] for name in names})

    def _with_copies(self, values: Values) -> Values:
        """The values, also for the copies of mirrored variables."""
        copies = {**self._own_copies, **self.program.built.initial.mirrors}
        return {**values, **{copy: values[of] for copy, of in copies.items() if of in values}}

    @cached_property
    def _own_copies(self) -> Mapping[str, str]:
        """The copies that the program itself keeps of variables, each with the first copy."""
        return {
            copy: group.of[min(group.of)]
            for group in variable_layout(self.program.placement).mirrored
            for copies in (group.of, group.apart)
            for tower, copy in copies.items()
            if tower != min(group.of)
        }

    def gradients(self, feeds: Values, metadata: Any = None) -> dict[str, npt.NDArray[Any]]:
        """The gradient of every variable, dense, by its name."""
        read = self.program.gradient_tensors.gradients
        fetches = {
            name: tuple(part for part in gradient if part) for name, gradient in read.items()
        }
        fetched = self.run(fetches, feeds, metadata)
        return {
            name: parts[0] if len(parts) == 1 else self._dense(name, *parts)
            for name, parts in fetched.items()
        }

    def _dense(self, name: str, values: Any, indices: Any) -> npt.NDArray[Any]:
        """The sum of slices; of rows that are listed more than once, all count."""
        variables = self.program.placement.variables
        shape: Any = next(variable.shape for variable in variables if variable.name == name)
        if shape is None or None in shape:
            shape = self.run(self._variables.reads[name]).shape
        dense = np.zeros(shape, np.float64)
        np.add.at(dense, indices, np.asarray(values, np.float64))
        return dense.astype(values.dtype)

    def as_gradients(self, values: Values) -> dict[str, npt.NDArray[Any]]:
        """The feeds with which a step applies these gradients in place of its own."""
        feeds = {}
        for name, gradient in self.program.gradient_tensors.gradients.items():
            feeds[gradient.values] = values[name]
            if gradient.indices:
                feeds[gradient.indices] = np.arange(len(values[name]))
        return feeds

    def step(self, feeds: Values, metadata: Any = None) -> None:
        """Take one training step; ``metadata`` is given partition graphs and step statistics."""
        train_op = list(self.program.placement.step.train_op)
        self.run(train_op, feeds, metadata, traced=metadata is not None)

    def prepared(self, feeds: Values) -> Callable[[], object]:
        """A training step on these rows, made ready so that a call takes little but the step."""
        train_op = list(self.program.placement.step.train_op)
        step = self._session.make_callable(train_op, feed_list=list(feeds))
        return partial(step, *feeds.values())

    @property
    def _trace_level(self) -> Any:
        """Step statistics; those of GPUs come from their own tracer."""
        simulated = self.program.simulated
        return tf1.RunOptions.SOFTWARE_TRACE if simulated else tf1.RunOptions.FULL_TRACE

    def ran_on(self, feeds: Values) -> dict[str, Device]:
        """Where the ops behind the gradients ran, by name, read from the partition graphs.

        Where no gradient can be read, those of a step, which changes variables.
        """
        metadata = tf1.RunMetadata()
        if self.program.gradient_tensors.gradients:
            self.gradients(feeds, metadata)
        else:
            self.run(list(self.program.placement.step.train_op), feeds, metadata)
        return {
            node.name: Device.parse(node.device)
            for part in metadata.partition_graphs
            for node in part.node
        }

    def first_not_finite(self, ops: Iterable[str], feeds: Values) -> str | None:
        """The first of these ops, in the order of building, that yields a NaN or an infinity."""
        names = self._numeric(ops)
        for start in range(0, len(names), _MAX_FETCHED):
            part = names[start : start + _MAX_FETCHED]
            for name, value in zip(part, self.fetched(part, feeds), strict=True):
                if value is not None and not np.all(np.isfinite(np.asarray(value, np.float64))):
                    return name.partition(":")[0]
        return None

    def _numeric(self, ops: Iterable[str]) -> list[str]:
        graph = self.program.graph
        wanted = set(ops)
        return [
            tensor.name
            for op in graph.get_operations()
            if op.name in wanted
            for tensor in op.outputs
            if tensor.dtype.is_floating and tensor.dtype == tensor.dtype.base_dtype
        ]

    def fetched(self, names: Sequence[str], feeds: Values) -> Sequence[Any]:
        """The values of tensors; None for those of a branch that is not taken."""
        try:
            return list(self.run(list(names), feeds))
        except (InputError, CannotRun):
            if len(names) == 1:
                return [None]
            half = len(names) // 2
            return [*self.fetched(names[:half], feeds), *self.fetched(names[half:], feeds)]
