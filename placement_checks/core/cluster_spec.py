"""Cluster specifications of TensorFlow: ``ClusterSpec``, ``TF_CONFIG``, and servers.

A ``ClusterSpec`` maps tasks to addresses, ``{job: [address, …]}`` or ``{job: {index: address}}``
(``tf.train.ClusterSpec``). The environment variable ``TF_CONFIG`` is JSON with a ClusterSpec under
``cluster``, and the task of this process under ``task``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement_checks.core.errors import InputError
from placement_checks.util.text import join_and, nearest

TF_CONFIG = "TF_CONFIG"
NO_CLUSTER = {TF_CONFIG: "{}"}  # the environment variables of a process without a cluster
_FIX = 'write it like {"ps": ["host0:2222"], "worker": ["host1:2222", "host2:2222"]}'
_JOB = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]{1,9}")

_SHOWN = 8  # indices of tasks in a message

Addresses = dict[str, dict[int, str]]


def addresses(spec: Any, name: str = "the ClusterSpec") -> Addresses:
    """The address of every task, by job and index.

    Args:
        spec: a ``tf.train.ClusterSpec``, or an equivalent mapping.
        name: the name of the spec in messages.

    Raises:
        InputError: the spec or an address is malformed, or two tasks have the same address.
    """
    jobs = spec.as_dict() if hasattr(spec, "as_dict") else spec
    if not isinstance(jobs, Mapping) or not jobs:
        raise InputError(name, "names no jobs", _FIX, is_predicate=True)
    cluster: Addresses = {}
    owners: dict[str, str] = {}
    for job, tasks in jobs.items():
        if not isinstance(job, str) or not _JOB.fullmatch(job):
            raise InputError(name, f"{job!r} is not the name of a job", _FIX)
        for index, address in _tasks(tasks, job, name):
            task = f"/job:{job}/task:{index}"
            _check_address(address, task, name)
            if address in owners:
                raise InputError(
                    name,
                    f"{owners[address]} and {task} both have the address {address}",
                    "give every task a port of its own",
                )
            owners[address] = task
            cluster.setdefault(job, {})[index] = address
    return cluster


def from_environment() -> tuple[Addresses, tuple[str, int] | None]:
    """The cluster of ``TF_CONFIG``, and the job and index of this process.

    Raises:
        InputError: ``TF_CONFIG`` is not set, is malformed, or names a task that its cluster lacks.
    """
    if not os.environ.get(TF_CONFIG):
        raise InputError(
            TF_CONFIG,
            "is not set",
            "set it, or describe the machine instead of TF_CONFIG",
            is_predicate=True,
        )
    described = _described()
    if not described.get("cluster"):
        raise _no_cluster()
    cluster = addresses(described["cluster"], TF_CONFIG)
    task = described.get("task")
    if not isinstance(task, Mapping) or task.get("type") in (None, "evaluator"):
        return cluster, None  # an evaluator is not part of the cluster
    return cluster, _task_of_process(str(task["type"]), task.get("index", 0), cluster)


def check_environment() -> None:
    """Check ``TF_CONFIG``, which may also be missing or name no cluster.

    Raises:
        InputError: ``TF_CONFIG`` is malformed, or has a cluster but does not state the task of
            this process.
    """
    if not (described := _described()).get("cluster"):
        return
    _, process = from_environment()
    task = described.get("task")
    if process is None and not (isinstance(task, Mapping) and task.get("type")):
        raise InputError(
            TF_CONFIG,
            "has a cluster, but does not state the task of this process",
            'add "task": {"type": "worker", "index": 0} next to "cluster"',
            is_predicate=True,
        )


def parameter_servers() -> int:
    """The number of tasks in the job ps of ``TF_CONFIG``; 0 if it is malformed."""
    try:
        cluster, _ = from_environment()
    except InputError:
        return 0
    return len(cluster.get("ps", ()))


def environment_of(cluster: Addresses, job: str, task: int) -> dict[str, str]:
    """The ``TF_CONFIG`` of a task."""
    spec = {name: [tasks[index] for index in sorted(tasks)] for name, tasks in cluster.items()}
    return {TF_CONFIG: json.dumps({"cluster": spec, "task": {"type": job, "index": task}})}


def _described() -> Mapping[str, Any]:
    """The contents of ``TF_CONFIG``; empty if it is not set.

    Raises:
        InputError: ``TF_CONFIG`` is not JSON, or not a mapping.
    """
    try:
        described = json.loads(os.environ.get(TF_CONFIG) or "{}")
    except (ValueError, RecursionError) as error:
        raise InputError(TF_CONFIG, f"is not JSON: {error}", is_predicate=True) from None
    if not isinstance(described, Mapping):
        raise _no_cluster()
    return described


def _no_cluster() -> InputError:
    fix = f'its "cluster" is missing; {_FIX}'
    return InputError(TF_CONFIG, "describes no cluster", fix, is_predicate=True)


def tasks_text(indices: Sequence[int]) -> str:
    """``task 0 alone``, ``tasks 0 and 7``, ``tasks 0 to 7``."""
    if len(indices) == 1:
        return f"task {indices[0]} alone"
    if list(indices) == list(range(indices[0], indices[-1] + 1)) and len(indices) > 2:
        return f"tasks {indices[0]} to {indices[-1]}"
    shown = [*indices[:_SHOWN], "others"] if len(indices) > _SHOWN + 1 else indices
    return f"tasks {join_and(shown)}"


def _tasks(tasks: Any, job: str, name: str) -> list[tuple[int, Any]]:
    if isinstance(tasks, Mapping) and tasks:
        if all(_is_index(index) for index in tasks):
            numbered = {int(index): address for index, address in tasks.items()}
            if len(numbered) < len(tasks):
                raise InputError(name, f"the job {job} has a task index twice", _FIX)
            return [(index, numbered[index]) for index in sorted(numbered)]
    elif isinstance(tasks, Sequence) and not isinstance(tasks, str) and tasks:
        return list(enumerate(tasks))
    raise InputError(name, f"the job {job} lacks a list of addresses", _FIX)


def _is_index(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value < 10**9
    return isinstance(value, str) and bool(_NUMBER.fullmatch(value))


def _check_address(address: Any, task: str, name: str) -> None:
    if not isinstance(address, str):
        kind = type(address).__name__
        raise InputError(name, f"the address of {task} is of type {kind}", "write host0:2222")
    host, colon, port = address.rpartition(":")
    if not (host and colon and _NUMBER.fullmatch(port)):
        raise InputError(name, f"{task} has the address {address!r}", "write it like host0:2222")
    if int(port) > 65535:
        raise InputError(name, f"{task} has the port {port}", "ports end at 65535")


def _task_of_process(job: str, index: Any, cluster: Addresses) -> tuple[str, int]:
    if job not in cluster:
        near = nearest(job, list(cluster))
        jobs = f"its jobs are {', '.join(cluster)}"
        fix = f"did you mean '{near}'?" if near else jobs
        raise InputError(TF_CONFIG, f"its task is of the job {job}, which the cluster lacks", fix)
    if not _is_index(index) or int(index) not in cluster[job]:
        raise InputError(
            TF_CONFIG,
            f"its task is /job:{job}/task:{str(index)[:20]}, which the cluster lacks",
            f"the job has {tasks_text(sorted(cluster[job]))}",
        )
    return job, int(index)


@dataclass(frozen=True)
class RecordedServer:
    """The arguments of a ``tf.distribute.Server``."""

    cluster: Addresses  # the address of every task, by job and index
    job: str  # the job of the server
    task: int  # the index of the server in its job

    @staticmethod
    def from_spec(spec: Any, job: str, task: int) -> RecordedServer:
        """Parse the arguments of a server.

        Raises:
            InputError: the cluster lacks the task.
        """
        cluster = addresses(spec, "the cluster of the server")
        server = RecordedServer(cluster, job, task)
        tasks = cluster.get(server.job)
        if tasks is None or server.task not in tasks:
            known = f"its jobs are {', '.join(cluster)}"
            if tasks:
                known = f"the job {server.job} has {tasks_text(sorted(tasks))}"
            raise InputError(
                server.name,
                "is not in the cluster of the program's server",
                known,
                is_predicate=True,
            )
        return server

    @property
    def name(self) -> str:
        """The task, such as ``/job:worker/task:0``."""
        return f"/job:{self.job}/task:{self.task}"

    @property
    def target(self) -> str:
        """The target for sessions that connect to the server."""
        return f"grpc://{self.cluster[self.job][self.task]}"

    @property
    def is_alone(self) -> bool:
        """Whether the cluster has a single task, as with ``create_local_server``."""
        return sum(map(len, self.cluster.values())) == 1
