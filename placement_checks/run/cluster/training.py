"""Train programs on a running cluster, and read the devices on which their ops ran."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from placement_checks.core.cluster_spec import addresses
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.placement import Placement

if TYPE_CHECKING:
    from placement_checks.core.program import Batch, TargetLike
    from placement_checks.run.feeding.declared import DeclaredFeeding
    from placement_checks.run.runnable import RunnableProgram
    from placement_checks.run.session import ProgramSession


ANSWER_LIMIT = 5.0  # seconds for a task to accept a connection
_GRACE = 2.0  # seconds
_END_DELAY = 0.5  # seconds until the end of a task is reported
_POLL = 0.1  # seconds between two checks of the tasks

_Outcome: TypeAlias = tuple[Any, Exception | None]


class Trained(NamedTuple):
    """The result of training on a cluster.

    Attributes:
        placement: the requested placement, with the device on which each op of a step or
            initializer ran.
        losses: the losses that the program declares, one list for each step.
    """

    placement: Placement
    losses: list[list[float]]


class Cluster:
    """A running cluster.

    Attributes:
        spec: the address ``host:port`` of every task, by job and index.
        machine: the devices of its tasks.
        simulated: whether CPU devices simulate the GPUs: ``CPU:i+1`` is ``GPU:i``.
    """

    def __init__(
        self, spec: Any, machine: Machine | None = None, *, simulated: bool = False
    ) -> None:
        """Describe a cluster without connecting to it.

        Args:
            spec: a ``tf.train.ClusterSpec``, or the mapping to create one from.
            machine: the devices; by default two GPUs for each chief and worker, and a CPU for each
                other task.
            simulated: whether CPU devices simulate the GPUs.

        Raises:
            InputError: the spec is malformed, two tasks have the same address, or the machine has
                a task that the spec lacks.
        """
        self.spec = addresses(spec)
        self.machine = machine or Machine.of_cluster(spec)
        self.simulated = simulated
        for job, tasks in self.machine.jobs.items():
            for index in tasks:
                if index not in self.spec.get(job, {}):
                    raise InputError(
                        f"/job:{job}/task:{index}",
                        "is a task of the machine without an address in the ClusterSpec",
                        "describe the same tasks in both",
                        is_predicate=True,
                    )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.machine}, master {self.target})"

    @property
    def target(self) -> str:
        """The server of `Machine.master`, which sessions connect to."""
        master = self.machine.master
        return f"grpc://{self.spec[master.job][master.index]}"

    def ended(self) -> InputError | None:
        """Return an error for a task that has ended; None if all tasks seem to run."""
        return None

    def check_answering(self) -> None:
        """Check that every task accepts connections.

        Raises:
            InputError: a task accepts none; a session would wait for it forever.
        """
        if gone := self.ended():
            raise gone
        for job, tasks in self.spec.items():
            for index, address in tasks.items():
                host, _, port = address.rpartition(":")
                try:
                    socket.create_connection((host, int(port)), ANSWER_LIMIT).close()
                except OSError as error:
                    raise InputError(
                        f"/job:{job}/task:{index}",
                        f"no server answers at {address}: {error.strerror or error}",
                        "start its tf.distribute.Server, or correct its address in the "
                        "ClusterSpec",
                    ) from None

    def train(
        self,
        target: TargetLike,
        *,
        batch: Batch = None,
        steps: int = 1,
        rows: int = 0,
        seconds: float = 60.0,
        seed: int = 0,
    ) -> Trained:
        """Build a program for the machine, and train it through the master of this cluster.

        The devices of ops are read from the partition graphs that the tasks report.

        Args:
            target: the program, which must declare its train_op.
            batch: returns the rows; random rows by default.
            steps: the number of training steps.
            rows: the size of the global batch.
            seconds: the time limit of a step.
            seed: the seed of the rows.

        Raises:
            InputError: the program names a task that is not in the cluster; a step fails; or a
                task ends or does not answer.
        """
        import numpy as np

        program, feeding = self._prepare(target, batch, rows)
        training = program.placement.step
        fetches = {"step": list(training.train_op), "losses": list(training.losses)}
        initial = program.built.initial
        initializers = [
            initial.initializers.values(),
            initial.local_initializers.values(),
            initial.tables,
        ]
        rng = np.random.default_rng(seed)
        devices: dict[str, Device] = {}
        losses = []
        with self._session(program, seconds) as session:
            for number, ops in enumerate(initializers):
                self._run(session, f"initializer {number}", seconds, list(ops), None, devices)
            for step in range(steps):
                feeds = feeding.to_towers(feeding.batch(rng, feeding.rows)) if feeding else None
                fetched = self._run(session, f"step {step + 1}", seconds, fetches, feeds, devices)
                losses.append([float(np.mean(loss)) for loss in fetched["losses"]])
        return Trained(self._executed_placement(program.placement, devices), losses)

    def _prepare(
        self, target: TargetLike, batch: Batch, rows: int
    ) -> tuple[RunnableProgram, DeclaredFeeding | None]:
        """Return a program built for the machine, and its feeding if it has inputs.

        Raises:
            InputError: a task accepts no connections, or the program cannot be trained on them.
        """
        from placement_checks.capture.programs import load
        from placement_checks.core.errors import CannotRun
        from placement_checks.run.feeding.batches import load_batch_function
        from placement_checks.run.feeding.declared import DeclaredFeeding
        from placement_checks.run.preconditions import check_step_known
        from placement_checks.run.runnable import make_runnable

        self.check_answering()
        program = load(target, self.machine.towers)
        try:
            runnable_program = make_runnable(
                program, "simulated" if self.simulated else "real", cluster=self.machine
            )
            check_step_known(runnable_program)
            feeding = (
                DeclaredFeeding(
                    runnable_program, None, load_batch_function(batch, program.gpus), rows=rows
                )
                if runnable_program.inputs
                else None
            )
        except CannotRun as reason:
            raise InputError(program.name, str(reason)) from None
        return runnable_program, feeding

    @contextlib.contextmanager
    def _session(self, program: RunnableProgram, seconds: float) -> Iterator[ProgramSession]:
        """Open a session on the master; at the end, close it, or give up if a task has ended."""
        from placement_checks.run.session import ProgramSession

        config = type(program.config)(
            log_device_placement=True, allow_soft_placement=program.placement.soft
        )
        session = ProgramSession(replace(program, config=config), seconds, target=self.target)
        try:
            yield session
        finally:
            # Closing a session waits forever for a task that has ended.
            closing = threading.Thread(target=session.close, daemon=True)
            closing.start()
            closing.join(_GRACE)

    def _run(
        self,
        session: ProgramSession,
        activity: str,
        seconds: float,
        fetches: Any,
        feeds: Any,
        devices: dict[str, Device],
    ) -> Any:
        """Run a part of the graph, and add the devices of its ops to ``devices``."""
        from placement_checks.run.runnable import tf1

        metadata = tf1.RunMetadata()
        answer: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put((session.run(fetches, feeds, metadata), None))
            except Exception as error:
                answer.put((None, error))

        # A thread, because a run cannot be interrupted while it waits for a task that has ended.
        threading.Thread(target=work, daemon=True).start()
        result = self._await_result(answer, f"{activity} of {session.program.name}", seconds)
        for part in metadata.partition_graphs:
            for node in part.node:
                devices[node.name] = Device.parse(node.device)
        return result

    def _await_result(
        self, answer: queue.SimpleQueue[_Outcome], activity: str, seconds: float
    ) -> Any:
        """Return the result of a run.

        Raises:
            InputError: the run failed, a task ended, or there is no result in time.
        """
        failure = None
        deadline = time.monotonic() + seconds + _GRACE
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                result, failure = answer.get(timeout=_POLL)
                if failure is None:
                    return result
                deadline = time.monotonic() + _END_DELAY
            if gone := self.ended():
                raise _with_activity(gone, activity)
        try:
            self.check_answering()  # names the task that ended, unlike TensorFlow's error
        except InputError as gone:
            raise _with_activity(gone, activity) from None
        raise failure or InputError(
            self.target,
            f"did not answer within {seconds:g} s, during {activity}",
            "check that all tasks run",
            is_predicate=True,
        )

    def _executed_placement(
        self, requested: Placement, devices: Mapping[str, Device]
    ) -> Placement:
        """Return the requested placement with the devices of the run, as GPUs if simulated."""
        from placement_checks.tf.simulated_devices import to_requested

        simulated_tasks = {(gpu.job, gpu.task) for gpu in self.machine.gpus if self.simulated}
        ops = {
            name: op._replace(
                assigned=to_requested(device)
                if (device.job, device.task) in simulated_tasks
                else device
            )
            if (device := devices.get(name))
            else op
            for name, op in requested.ops.items()
        }
        return replace(requested, ops=ops, machine=self.machine, placer="session", assigned=True)


def _with_activity(gone: InputError, activity: str) -> InputError:
    message = f"{gone.message} during {activity}"
    return InputError(
        gone.object, message, gone.fix, details=gone.details, is_predicate=gone.is_predicate
    )
