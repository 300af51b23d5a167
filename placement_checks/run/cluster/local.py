"""Run a cluster as processes on this machine, to try a program on real tasks.

A CPU device simulates each GPU of a task. One child process serves all tasks (`server_process`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from placement_checks.capture.child_process.fork_server import ForkServerCache
from placement_checks.core.errors import InputError, PlacerError, UsageError
from placement_checks.core.machines import Machine, Task
from placement_checks.run.cluster.server_process import SERVING
from placement_checks.run.cluster.training import Cluster, Trained
from placement_checks.util.child import Child, Ended, describe_exit

START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
_STOP_LIMIT = 10.0  # seconds for the tasks to end
MAX_TASKS = 32  # each has about 100 threads of TensorFlow
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
        tasks = [
            {
                "job": task.job,
                "index": task.index,
                "cpus": _cpu_devices(task),
                "log": str(self.log(task.job, task.index)),
            }
            for task in self.machine.tasks
        ]
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
        """Return the file with the output of a task; the master's has the placement log."""
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
            child.stop(_STOP_LIMIT)  # the tasks end with it


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
    with tempfile.TemporaryDirectory(prefix="placement_checks") as folder:
        cluster = LocalCluster(machine, Path(folder))
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
            f"has {len(machine.tasks)} tasks, and at most {MAX_TASKS} processes are started",
            "place the program instead: the placer needs no processes",
            is_predicate=True,
        )
    for task in machine.tasks:
        counts = dict(task.devices)
        if counts.get("GPU") and counts["CPU"] > 1:
            raise UsageError(
                f"machine '{machine}'",
                f"/job:{task.job}/task:{task.index} has several CPU devices besides GPUs, which "
                "CPU devices simulate",
                "give it one CPU device",
            )


def _cpu_devices(task: Task) -> int:
    counts = dict(task.devices)
    return counts["CPU"] + counts.get("GPU", 0)


def reserve_port() -> socket.socket:
    """Return a socket that reserves a port; only servers that share ports can use it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


__all__ = ["Cluster", "LocalCluster", "Trained", "local_cluster"]
