"""Records the servers that a program of a cluster creates, without starting them.

The class `tf.distribute.Server` (also `tf.compat.v1.train.Server`) stays as it is; the functions
of the C library that it calls are replaced. No port is opened, and no process connects.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import tensorflow as tf

from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError
from placement_checks.tf.distribution import forget_server
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import afterwards, patched

_TRAINING_JOBS = ("worker", "chief", "master")  # their tasks take training steps
_OTHER_JOBS = ("ps", "evaluator")


@contextlib.contextmanager
def record_servers() -> Iterator[list[RecordedServer]]:
    """Record the servers that are created in this block, without starting them.

    Raises:
        InputError: in the block, if the program joins its server, as a parameter server does, or
            creates a server for a task that is not in its cluster.
    """
    recorded: list[RecordedServer] = []
    created: weakref.WeakSet[Any] = weakref.WeakSet()

    def new(serialized: bytes) -> RecordedServer:
        definition = tf.train.ServerDef.FromString(serialized)
        cluster = tf.train.ClusterSpec(definition.cluster)
        server = RecordedServer.from_spec(cluster, definition.job_name, definition.task_index)
        recorded.append(server)
        return server

    with (
        patched(Patch.NEW_SERVER, afterwards(lambda server, *_: created.add(server))),
        patched(Patch.C_NEW_SERVER, lambda _: new),
        patched(Patch.C_START_SERVER, lambda _: lambda _: None),
        patched(Patch.C_STOP_SERVER, lambda _: lambda _: None),
        patched(Patch.C_SERVER_TARGET, lambda _: lambda server: server.target),
        patched(Patch.C_JOIN_SERVER, lambda _: _refuse_join),
    ):
        try:
            yield recorded
        finally:
            for server in created:
                forget_server(server)


def _refuse_join(server: RecordedServer) -> NoReturn:
    """Replace `tf.distribute.Server.join`, which never returns."""
    others = [job for job in server.cluster if job not in (server.job, *_OTHER_JOBS)]
    training = next((job for job in _TRAINING_JOBS if job in others), others[0] if others else "")
    is_training_job = server.job in _TRAINING_JOBS
    if training:
        subject = "it" if is_training_job else "this is a parameter server: it"
        message = f"{subject} waits in server.join()"
        options = f"--job_name={training} --task_index=0"
        fix = f"run a {training} instead, with arguments such as {options}"
    else:
        message = "it waits forever in server.join()"
        fix = (
            'run a coordinator instead: --machine "chief*1; ps*2; worker*2: gpu*2"'
            if is_training_job
            else "run a task that trains instead"
        )
    raise InputError(server.name, message, fix)
