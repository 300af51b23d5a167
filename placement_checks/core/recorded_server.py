"""What the server of a task of a cluster is made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from placement_checks.core.cluster_spec import Addresses, addresses, tasks_text
from placement_checks.core.errors import InputError


@dataclass(frozen=True)
class RecordedServer:
    """What a server was made with.

    Attributes:
        cluster: the address of every task, by job and index.
        job: of the program itself.
        task: its index in the job.
    """

    cluster: Addresses
    job: str
    task: int

    @staticmethod
    def of(spec: Any, job: str, task: int) -> RecordedServer:
        """The server of a task.

        Raises:
            InputError: the cluster lacks the task.
        """
        cluster = addresses(spec, "the cluster of the server")
        server = RecordedServer(cluster, job, task)
        tasks = cluster.get(server.job)
        if tasks is None or server.task not in tasks:
            jobs = f"its jobs are {', '.join(cluster)}"
            has = f"the job {server.job} has {tasks_text(sorted(tasks))}" if tasks else jobs
            raise InputError(server.name, "is not in the cluster of the program's server", has)
        return server

    @property
    def name(self) -> str:
        """Such as ``/job:worker/task:0``."""
        return f"/job:{self.job}/task:{self.task}"

    @property
    def target(self) -> str:
        """What a session is given to connect to it."""
        return f"grpc://{self.cluster[self.job][self.task]}"

    @property
    def is_alone(self) -> bool:
        """Whether there is no other task, as with ``create_local_server``."""
        return sum(map(len, self.cluster.values())) == 1
