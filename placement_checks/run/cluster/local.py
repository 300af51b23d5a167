"""Starts the tasks of a cluster on this machine, and ends them.

A cluster of processes on this machine: what the placer answers for one, tried on a real one.
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
from typing import Any, BinaryIO

from placement_checks.capture.child_process.fork_server import ForkServerCache
from placement_checks.core.errors import InputError, PlacerError, UsageError
from placement_checks.core.machines import Machine, Task
from placement_checks.run.cluster.server_process import SERVING
from placement_checks.run.cluster.training import Cluster, Trained
from placement_checks.util.child import Child, Ended, describe_exit

START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
_STOP_LIMIT = 10.0  # seconds in which the tasks end
MAX_TASKS = 32  # each holds TensorFlow's threads, about 100
_kept = ForkServerCache()  # of all clusters of this process; those that watch print less


class LocalCluster(Cluster):
    """A cluster of processes on this machine, which listen on loopback alone.

    A CPU device stands in for each GPU of a task: ``CPU:i+1`` for ``GPU:i``.

    Attributes:
        pids: the process of each task, by job and index.
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        """Reserve the ports; `start` starts the tasks, and `stop` ends them.

        Args:
            machine: the tasks and their devices.
            folder: where each task writes what it prints.

        Raises:
            UsageError: it is one host, it has more than 32 tasks, or a task has several CPU
                devices beside GPUs.
        """
        _check(machine)
        self._folder = folder
        self._sockets = [reserved_port() for _ in machine.tasks]
        spec: dict[str, dict[int, str]] = {}
        for task, reserved in zip(machine.tasks, self._sockets, strict=True):
            spec.setdefault(task.job, {})[task.index] = f"127.0.0.1:{reserved.getsockname()[1]}"
        super().__init__(spec, machine, simulated=True)
        self.pids: dict[tuple[str, int], int] = {}
        self._ended: dict[tuple[str, int], int] = {}
        self._child: Child | None = None

    def start(self) -> None:
        """Start all tasks; they serve when this returns.

        Raises:
            PlacerError: one of them did not start; `stop` ends the others.
        """
        self._child = Child(
            "placement_checks.run.cluster.server_process",
            environment={
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
                "TF_GRPC_REUSE_PORT": "1",  # beside the socket that reserves it
                "no_grpc_proxy": "127.0.0.1,localhost",
            },
            forks=_kept.for_children,
        )
        try:
            with self._child.time_limit(START_LIMIT):
                self._await_all(self._child)
        except Ended as ended:
            raise _not_started(
                "a local cluster", f"its process {ended.how}", ended.output
            ) from None
        threading.Thread(target=self._follow, args=(self._child.replies,), daemon=True).start()
        for reserved in self._sockets:
            reserved.close()

    def _tasks(self) -> list[dict[str, Any]]:
        """What the process of the servers is told of each."""
        return [
            {
                "job": task.job,
                "index": task.index,
                "cpus": _cpus(task),
                "log": str(self.log(task.job, task.index)),
            }
            for task in self.machine.tasks
        ]

    def _await_all(self, child: Child) -> None:
        request = {"spec": self.spec, "tasks": self._tasks()}
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

    def _follow(self, replies: BinaryIO) -> None:
        """Note which tasks have ended."""
        with contextlib.suppress(ValueError):  # `stop` has closed it
            for line in replies:
                event = json.loads(line)
                self._ended[event["job"], event["index"]] = event["ended"]

    def log(self, job: str, index: int) -> Path:
        """The file with all that a task prints; the placement log is that of the master."""
        return self._folder / f"{job}-{index}.log"

    def kill(self, job: str, index: int) -> None:
        """End one task at once (SIGKILL), as a machine that fails does."""
        os.kill(self.pids[job, index], signal.SIGKILL)

    def ended(self) -> InputError | None:
        for (job, index), code in dict(self._ended).items():
            output = self.log(job, index).read_text(errors="replace")[-2000:].strip()
            return InputError(
                f"/job:{job}/task:{index}",
                f"its process {describe_exit(code)}",
                "start the cluster anew, and restore the variables from a checkpoint",
                details=output,
            )
        return None

    def stop(self) -> None:
        """End all tasks; none is left when this returns."""
        for reserved in self._sockets:
            reserved.close()
        child, self._child = self._child, None
        if child is not None:
            child.stop(_STOP_LIMIT)  # and the tasks end with it


@contextlib.contextmanager
def local_cluster(machine: Machine | str) -> Iterator[LocalCluster]:
    """A running cluster of processes on this machine, ended with the context.

    Args:
        machine: the tasks, such as ``"ps*2; worker*2: gpu*2"``; a CPU device stands in for each
            GPU.

    Raises:
        UsageError: it is not a cluster, or a larger one than this machine should start.
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
    fix = "try again: every start takes other ports"
    return PlacerError(name, f"did not start: {why}", fix, details=details)


def _check(machine: Machine) -> None:
    if machine.is_local:
        raise UsageError(
            f"machine '{machine}'",
            "is a single host, not a cluster",
            'write it like "ps*2; worker*2"',
        )
    if len(machine.tasks) > MAX_TASKS:
        raise UsageError(
            f"machine '{machine}'",
            f"has {len(machine.tasks)} tasks, and {MAX_TASKS} processes at most are started here",
            "place it instead: the placer needs no processes",
        )
    for task in machine.tasks:
        counts = dict(task.devices)
        if counts.get("GPU") and counts["CPU"] > 1:
            raise UsageError(
                f"machine '{machine}'",
                f"/job:{task.job}/task:{task.index} has several CPU devices and GPUs, and CPU "
                "devices stand in for GPUs",
                "give it one CPU device",
            )


def _cpus(task: Task) -> int:
    counts = dict(task.devices)
    return counts["CPU"] + counts.get("GPU", 0)


def reserved_port() -> socket.socket:
    """A socket that keeps a port from everybody but a server that may share it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


__all__ = ["Cluster", "LocalCluster", "Trained", "local_cluster"]
