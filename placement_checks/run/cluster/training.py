"""Trains programs on a running cluster, and reads back where their ops ran."""

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
    from placement_checks.core.program import Batch, Target
    from placement_checks.run.feeding.declared import DeclaredFeeding
    from placement_checks.run.runnable import RunnableProgram
    from placement_checks.run.session import ProgramSession


ANSWER_LIMIT = 5.0  # seconds within which a task takes a connection
_GRACE = 2.0  # seconds

_END_DELAY = 0.5  # seconds that it takes to hear of a task's end
_POLL = 0.1  # seconds between two looks at the tasks

_Outcome: TypeAlias = tuple[Any, Exception | None]


class Trained(NamedTuple):
    """What came of training on a cluster.

    Attributes:
        placement: where every op that was part of a step or of the initialisers ran.
        losses: the losses that the program reports, one list a step.
    """

    placement: Placement
    losses: list[list[float]]


class Cluster:
    """A running cluster.

    Attributes:
        spec: the address ``host:port`` of every task, by job and index.
        machine: the devices of its tasks.
        simulated: whether CPU devices stand in for GPUs, ``CPU:i+1`` for ``GPU:i``.
    """

    def __init__(
        self, spec: Any, machine: Machine | None = None, *, simulated: bool = False
    ) -> None:
        """Describe it; nothing is asked of it yet.

        Args:
            spec: a ``tf.train.ClusterSpec``, or a mapping that makes one.
            machine: by default two GPUs for each chief and worker, and a CPU for the others.
            simulated: whether CPU devices stand in for GPUs.

        Raises:
            InputError: the spec is malformed, two tasks have the same address, or the machine has
                other tasks.
        """
        self.spec = addresses(spec)
        self.machine = machine or Machine.of_cluster(spec)
        self.simulated = simulated
        for job, tasks in self.machine.jobs.items():
            for index in tasks:
                if index not in self.spec.get(job, {}):
                    raise InputError(
                        f"/job:{job}/task:{index}",
                        "the machine has it, and the ClusterSpec has no address for it",
                        "describe the same tasks in both",
                    )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.machine}, master {self.target})"

    @property
    def target(self) -> str:
        """The server that sessions are opened on, that of `Machine.master`."""
        master = self.machine.master
        return f"grpc://{self.spec[master.job][master.index]}"

    def ended(self) -> InputError | None:
        """Which task is known to have ended, and how."""
        return None

    def answers(self) -> None:
        """Check that every task takes connections.

        Raises:
            InputError: one does not; a session would wait for it for ever.
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
        target: Target,
        *,
        batch: Batch = None,
        steps: int = 1,
        rows: int = 0,
        seconds: float = 60.0,
        seed: int = 0,
    ) -> Trained:
        """Build a program, and train it through the master of this cluster.

        Its graph is built for the machine. Where ops ran is read from the partition graphs that
        the tasks report.

        Args:
            target: the program; it says what one step is.
            batch: gives the rows; made up by default.
            steps: how many are taken.
            rows: of the global batch.
            seconds: that a step may take.
            seed: of the rows.

        Raises:
            InputError: the program names a task that the cluster has not, it fails, or a task
                ends or gives no answer meanwhile.
        """
        import numpy as np

        program, feeding = self._prepared(target, batch, rows)
        training = program.placement.step
        fetches = {"step": list(training.train_op), "losses": list(training.losses)}
        initial = program.built.initial
        initialisers = [
            initial.initializers.values(),
            initial.local_initializers.values(),
            initial.tables,
        ]
        rng = np.random.default_rng(seed)
        ran_on: dict[str, Device] = {}
        losses = []
        with self._session(program, seconds) as session:
            for number, ops in enumerate(initialisers):
                self._run(session, f"initialiser {number}", seconds, list(ops), None, ran_on)
            for step in range(steps):
                feeds = feeding.to_towers(feeding.batch(rng, feeding.rows)) if feeding else None
                fetched = self._run(session, f"step {step + 1}", seconds, fetches, feeds, ran_on)
                losses.append([float(np.mean(loss)) for loss in fetched["losses"]])
        return Trained(self._placed(program.placement, ran_on), losses)

    def _prepared(
        self, target: Target, batch: Batch, rows: int
    ) -> tuple[RunnableProgram, DeclaredFeeding | None]:
        """A program built for the machine, and how it is fed; None where it has no inputs.

        Raises:
            InputError: a task takes no connections, or the program cannot be trained on them.
        """
        from placement_checks.capture.programs import load
        from placement_checks.core.errors import CannotRun
        from placement_checks.run.feeding.batches import load_batch_function
        from placement_checks.run.feeding.declared import DeclaredFeeding
        from placement_checks.run.preconditions import check_step_known
        from placement_checks.run.runnable import make_runnable

        self.answers()
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
        """A session on the master, closed at the end as far as the tasks let it."""
        from placement_checks.run.session import ProgramSession

        config = type(program.config)(
            log_device_placement=True, allow_soft_placement=program.placement.soft
        )
        session = ProgramSession(replace(program, config=config), seconds, target=self.target)
        try:
            yield session
        finally:
            # Where a task is gone, closing the session waits for it for ever.
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
        ran_on: dict[str, Device],
    ) -> Any:
        """Run a part of the graph, and note where its ops ran."""
        from placement_checks.run.runnable import tf1

        metadata = tf1.RunMetadata()
        answer: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put((session.run(fetches, feeds, metadata), None))
            except Exception as error:
                answer.put((None, error))

        # In a thread, because nothing ends a run that waits for a task that is gone.
        threading.Thread(target=work, daemon=True).start()
        result = self._awaited(answer, f"{activity} of {session.program.name}", seconds)
        for part in metadata.partition_graphs:
            for node in part.node:
                ran_on[node.name] = Device.parse(node.device)
        return result

    def _awaited(self, answer: queue.SimpleQueue[_Outcome], activity: str, seconds: float) -> Any:
        """The result of a run.

        Raises:
            InputError: it failed, a task has ended meanwhile, or there is no answer.
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
            self.answers()  # which task is gone says more than what TensorFlow makes of it
        except InputError as gone:
            raise _with_activity(gone, activity) from None
        raise failure or InputError(
            self.target,
            f"gave no answer within {seconds:g} s, during {activity}",
            "do all tasks run?",
        )

    def _placed(self, requested: Placement, ran_on: Mapping[str, Device]) -> Placement:
        """What was asked for, with where it ran; GPUs are named for what stood in for them."""
        from placement_checks.tf.simulated_devices import to_requested

        simulated_tasks = {(gpu.job, gpu.task) for gpu in self.machine.gpus if self.simulated}
        ops = {
            name: op._replace(
                assigned=to_requested(device)
                if (device.job, device.task) in simulated_tasks
                else device
            )
            if (device := ran_on.get(name))
            else op
            for name, op in requested.ops.items()
        }
        return replace(requested, ops=ops, machine=self.machine, placer="session", assigned=True)


def _with_activity(gone: InputError, activity: str) -> InputError:
    message = f"{gone.message} during {activity}"
    return InputError(gone.object, message, gone.fix, details=gone.details)
