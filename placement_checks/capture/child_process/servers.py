"""Records the servers that a program of a cluster creates, without starting them.

The class `tf.distribute.Server` (also `tf.compat.v1.train.Server`) stays as it is; the functions
of the C library that it calls are replaced. No port is opened, and no process connects.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorflow as tf

from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError
from placement_checks.tf.patching import Around, patched
from placement_checks.tf.sessions import around_servers, forget_server

_TRAINING_JOBS = ("worker", "chief", "master")  # their tasks take training steps


@contextlib.contextmanager
def record_servers() -> Iterator[list[RecordedServer]]:
    """Record the servers that are created in this block, without starting them.

    Raises:
        InputError: in the block, if the program joins its server, as a parameter server does, or
            creates a server for a task that is not in its cluster.
    """
    recorded: list[RecordedServer] = []
    made: weakref.WeakSet[Any] = weakref.WeakSet()

    def noting(init: Callable[..., None]) -> Callable[..., None]:
        def noted(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            made.add(self)

        return noted

    def new(serialized: bytes) -> RecordedServer:
        recorded.append(_recorded(tf.train.ServerDef.FromString(serialized)))
        return recorded[-1]

    functions = {
        "TF_NewServer": new,
        "TF_ServerStart": lambda _: None,
        "TF_ServerStop": lambda _: None,
        "TF_ServerTarget": lambda server: server.target,
        "TF_ServerJoin": _refuse_join,
    }
    with (
        patched(tf.distribute.Server, "__init__", noting),
        around_servers({name: _replace_by(function) for name, function in functions.items()}),
    ):
        try:
            yield recorded
        finally:
            for server in made:
                forget_server(server)


def _replace_by(function: Callable[..., Any]) -> Around:
    return lambda _: function


def _recorded(definition: Any) -> RecordedServer:
    cluster = tf.train.ClusterSpec(definition.cluster)
    return RecordedServer.of(cluster, definition.job_name, definition.task_index)


def _refuse_join(server: RecordedServer) -> NoReturn:
    """Replace `tf.distribute.Server.join`, which never returns."""
    others = [job for job in server.cluster if job != server.job]
    training = next((job for job in _TRAINING_JOBS if job in others), others[0] if others else "")
    waits = "waits in server.join()" if training else "waits forever in server.join()"
    is_server = training and server.job not in _TRAINING_JOBS
    raise InputError(
        server.name,
        f"this is a parameter server: it {waits}" if is_server else f"it {waits}",
        f"run a {training} instead, with arguments such as --job_name={training} --task_index=0"
        if training
        else 'run a coordinator instead: --machine "chief*1; ps*2; worker*2: gpu*2"'
        if server.job in _TRAINING_JOBS
        else "run a task that trains instead",
    )
