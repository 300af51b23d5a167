"""Train programs on a running cluster, and read the devices on which their ops ran.

`local_cluster` runs a cluster as processes on this machine, to try a program on real tasks. One
child process serves all of its tasks (`server_process`).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from placement_checks.capture.child_process.fork_server import ForkServerCache
from placement_checks.core.cluster_spec import addresses
from placement_checks.core.devices import Device, Devices
from placement_checks.core.errors import CannotRun, InputError, PlacerError, UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.placement import Placement
from placement_checks.run.cluster.server_process import SERVING
from placement_checks.util.child import Child, Ended, describe_exit
from placement_checks.util.temporary import locked_directory

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
                        "is a task of the machine, but has no address in the ClusterSpec",
                        "list the same tasks in both",
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
            InputError: a task accepts no connections; a session would wait for the task forever.
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
            InputError: a task accepts no connections, or the cluster cannot train the program.
        """
        from placement_checks.capture.programs import load
        from placement_checks.run.feeding.batches import load_batch_function
        from placement_checks.run.feeding.declared import DeclaredFeeding
        from placement_checks.run.preconditions import check_step_known
        from placement_checks.run.runnable import make_runnable
        from placement_checks.targets.forms import resolve

        self.check_answering()
        program = load(resolve(target), self.machine.towers)
        try:
            devices: Devices = "simulated" if self.simulated else "real"
            runnable = make_runnable(program, devices, cluster=self.machine)
            check_step_known(runnable)
            if not runnable.inputs:
                return runnable, None
            function = load_batch_function(batch, program.gpus, v1=program.v1)
            return runnable, DeclaredFeeding(runnable, None, function, rows=rows)
        except CannotRun as reason:
            raise InputError(program.name, str(reason)) from None

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
        """Return the requested placement with the devices that ran the ops.

        CPU devices that simulate GPUs are returned as these GPUs.
        """
        from placement_checks.tf.simulated_devices import to_requested

        simulated_tasks = {(gpu.job, gpu.task) for gpu in self.machine.gpus if self.simulated}
        ops = dict(requested.ops)
        for name in ops.keys() & devices.keys():
            device = devices[name]
            if (device.job, device.task) in simulated_tasks:
                device = to_requested(device)
            ops[name] = ops[name]._replace(assigned=device)
        return replace(requested, ops=ops, machine=self.machine, placer="session", assigned=True)


def _with_activity(gone: InputError, activity: str) -> InputError:
    return gone.copy(InputError, message=f"{gone.message} during {activity}")


START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
_STOP_LIMIT = 10.0  # seconds for the tasks to end
MAX_TASKS = 32  # each task has about 100 threads of TensorFlow
# All clusters of this process share it; other fork servers print less.
_server = ForkServerCache()


class LocalCluster(Cluster):
    """A cluster of processes on this machine, which listen on the loopback interface only.

    A CPU device simulates each GPU of a task: ``CPU:i+1`` is ``GPU:i``.

    Attributes:
        pids: the process ID of each task, by job and index.
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        """Reserve a port for each task, without starting the tasks.

        Args:
            machine: the tasks and their devices.
            folder: the directory for the output of each task.

        Raises:
            UsageError: the machine is a single host, has more than 32 tasks, or has a task with
                several CPU devices besides GPUs.
        """
        _check_machine(machine)
        self._folder = folder
        self._sockets = [reserve_port() for _ in machine.tasks]
        spec: dict[str, dict[int, str]] = {}
        for task, reserved in zip(machine.tasks, self._sockets, strict=True):
            spec.setdefault(task.job, {})[task.index] = f"127.0.0.1:{reserved.getsockname()[1]}"
        super().__init__(spec, machine, simulated=True)
        self.pids: dict[tuple[str, int], int] = {}
        self._ended: dict[tuple[str, int], int] = {}
        self._child: Child | None = None

    def start(self) -> None:
        """Start all tasks, and wait until they serve.

        Raises:
            PlacerError: a task did not start; `stop` ends the others.
        """
        self._child = Child(
            "placement_checks.run.cluster.server_process",
            environment={
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
                "TF_GRPC_REUSE_PORT": "1",  # shares the port with the socket that reserves it
                "no_grpc_proxy": "127.0.0.1,localhost",
            },
            forks=_server.for_children,
        )
        try:
            with self._child.time_limit(START_LIMIT):
                self._start_tasks(self._child)
        except Ended as ended:
            raise _not_started(
                "a local cluster", f"its process {ended.how}", ended.output
            ) from None
        threading.Thread(
            target=self._record_ends, args=(self._child.replies,), daemon=True
        ).start()
        for reserved in self._sockets:
            reserved.close()

    def _start_tasks(self, child: Child) -> None:
        """Request all tasks from the child process, and wait until they serve."""
        tasks = []
        for task in self.machine.tasks:
            counts, log = dict(task.devices), str(self.log(task.job, task.index))
            cpus = counts["CPU"] + counts.get("GPU", 0)
            tasks.append({"job": task.job, "index": task.index, "cpus": cpus, "log": log})
        request = {"spec": self.spec, "tasks": tasks}
        child.requests.write(json.dumps(request).encode() + b"\n")
        child.requests.flush()
        for _ in self.machine.tasks:
            line = child.replies.readline()
            if not line:
                raise EOFError
            event = json.loads(line)
            if event["answer"] != SERVING:
                name = f"/job:{event['job']}/task:{event['index']}"
                raise _not_started(
                    name, event["answer"] or "its process ended", child.last_output()
                )
            self.pids[event["job"], event["index"]] = event["pid"]

    def _record_ends(self, replies: BinaryIO) -> None:
        """Record the tasks that end, until `stop` closes the stream."""
        with contextlib.suppress(ValueError):
            for line in replies:
                event = json.loads(line)
                self._ended[event["job"], event["index"]] = event["ended"]

    def log(self, job: str, index: int) -> Path:
        """Return the file with the output of a task; the master prints the placement log."""
        return self._folder / f"{job}-{index}.log"

    def kill(self, job: str, index: int) -> None:
        """Kill one task (SIGKILL), which simulates the failure of a machine."""
        os.kill(self.pids[job, index], signal.SIGKILL)

    def ended(self) -> InputError | None:
        for (job, index), code in dict(self._ended).items():
            output = self.log(job, index).read_text(errors="replace")[-2000:].strip()
            return InputError(
                f"/job:{job}/task:{index}",
                f"its process {describe_exit(code)}",
                "start the cluster again, and restore the variables from a checkpoint",
                details=output,
            )
        return None

    def stop(self) -> None:
        """End all tasks, and wait until they have ended."""
        for reserved in self._sockets:
            reserved.close()
        child, self._child = self._child, None
        if child is not None:
            child.stop(_STOP_LIMIT)  # the tasks end with this process


@contextlib.contextmanager
def local_cluster(machine: Machine | str) -> Iterator[LocalCluster]:
    """Run a cluster of processes on this machine while the context is open.

    Args:
        machine: the tasks, such as ``"ps*2; worker*2: gpu*2"``; a CPU device simulates each GPU.

    Raises:
        UsageError: the machine is a single host, or has more than 32 tasks.
        PlacerError: a task did not start.
    """
    if isinstance(machine, str):
        machine = Machine.parse(machine)
    with locked_directory("placement_checks_cluster_") as folder:
        cluster = LocalCluster(machine, folder)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _not_started(name: str, why: str, details: str) -> PlacerError:
    fix = "try again: every start uses other ports"
    return PlacerError(name, f"did not start: {why}", fix, details=details, is_predicate=True)


def _check_machine(machine: Machine) -> None:
    if machine.is_local:
        raise UsageError(
            f"machine '{machine}'",
            "is a single host, not a cluster",
            'write it like "ps*2; worker*2"',
            is_predicate=True,
        )
    if len(machine.tasks) > MAX_TASKS:
        raise UsageError(
            f"machine '{machine}'",
            f"has {len(machine.tasks)} tasks, but at most {MAX_TASKS} processes are started",
            "place the program instead: the placer needs no processes",
            is_predicate=True,
        )
    for task in machine.tasks:
        counts = dict(task.devices)
        if counts.get("GPU") and counts["CPU"] > 1:
            raise UsageError(
                f"machine '{machine}'",
                f"/job:{task.job}/task:{task.index} has several CPU devices in addition to "
                "GPUs, but CPU devices simulate GPUs",
                "give it one CPU device",
            )


def reserve_port() -> socket.socket:
    """Return a socket that reserves a port; only servers with SO_REUSEPORT can use the port."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
