"""The servers of a program of a cluster, recorded instead of started.

`tf.distribute.Server`, which is `tf.compat.v1.train.Server`, stays the class that it is; what it
calls in C is replaced. No port is opened, and nothing connects.
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

_TRAINING = ("worker", "chief", "master")  # jobs whose tasks take training steps


@contextlib.contextmanager
def servers_recorded() -> Iterator[list[RecordedServer]]:
    """Record the servers that are made in this block, which serve nobody.

    Raises:
        InputError: in the block, where the program joins its server, as a parameter server does,
            and where it makes one for a task that its cluster lacks.
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
        "TF_ServerJoin": _joined,
    }
    with (
        patched(tf.distribute.Server, "__init__", noting),
        around_servers({name: _instead(function) for name, function in functions.items()}),
    ):
        try:
            yield recorded
        finally:
            for server in made:
                forget_server(server)


def _instead(function: Callable[..., Any]) -> Around:
    return lambda _: function


def _recorded(definition: Any) -> RecordedServer:
    cluster = tf.train.ClusterSpec(definition.cluster)
    return RecordedServer.of(cluster, definition.job_name, definition.task_index)


def _joined(server: RecordedServer) -> NoReturn:
    """What `tf.distribute.Server.join` does, which never returns."""
    others = [job for job in server.cluster if job != server.job]
    training = next((job for job in _TRAINING if job in others), others[0] if others else "")
    kind = "waits in server.join()" if training else "waits for ever in server.join()"
    is_server = training and server.job not in _TRAINING
    raise InputError(
        server.name,
        f"this is a parameter server: it {kind}" if is_server else f"it {kind}",
        f"watch a {training}, with arguments such as --job_name={training} --task_index=0"
        if training
        else 'a coordinator is to train: --machine "chief*1; ps*2; worker*2: gpu*2"'
        if server.job in _TRAINING
        else "watch a task that trains",
    )
