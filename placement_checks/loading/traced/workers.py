"""One worker of a strategy over several processes, watched while the others are not there.

`MultiWorkerMirroredStrategy` starts a server, and waits for those of the others. Here it starts
none and names no task: it takes the worker for a host of its own. The sizes and keys of its sums
are those of the whole cluster, so that they can be matched with those of the other workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from placement_checks.core.cluster_spec import check_environment
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.recorded_server import RecordedServer
from placement_checks.loading.tf_internals.patching import Around
from placement_checks.loading.tf_internals.workers import (
    around_collectives,
    around_environment,
    around_start_of_worker,
    around_worker_strategies,
    as_chief,
    forget_default_device,
    has_begun,
    make_local,
)


@contextlib.contextmanager
def workers_alone() -> Iterator[list[RecordedServer]]:
    """Let a worker train alone in this block; what it would wait for is made up.

    Yields:
        The servers that workers would start.

    Raises:
        InputError: in the block, where TF_CONFIG does not say which worker this is.
    """
    servers: list[RecordedServer] = []
    had_begun = has_begun()

    def configuring(original: Callable[..., None]) -> Callable[..., None]:
        def configure(*args: Any, **kwargs: Any) -> None:
            if not had_begun and has_begun():
                original(*args, **kwargs)  # refuses: the program ran ops before

        return configure

    def starting(original: Callable[..., None]) -> Callable[..., None]:
        def start(extended: Any, resolver: Any) -> None:
            job, task = resolver.task_type, resolver.task_id
            if job is not None and task is not None:  # else TensorFlow says so
                servers.append(RecordedServer.of(resolver.cluster_spec(), job, task))
            original(extended, resolver)
            forget_default_device(extended)

        return start

    def on_host(original: Callable[..., Any]) -> Callable[..., Any]:
        def devices(extended: Any, resolver: Any, worker_device: str) -> Any:
            if worker_device:
                make_local(extended, str(LOCALHOST))
            return original(extended, resolver, "")

        return devices

    def of_whole_cluster(makes_up: Callable[..., Any]) -> Callable[..., Any]:
        """A collective of eager code, whose others are not there; in functions it is traced."""

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def make(value: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
                if servers and tf.executing_eagerly():
                    return makes_up(value, size)
                return original(value, size, *args, **kwargs)

            return make

        return around

    collectives: Mapping[str, Around] = {
        "broadcast_send": lambda _: lambda value, *_args, **_kwargs: tf.identity(value),
        "all_reduce_v2": of_whole_cluster(lambda value, size: value * tf.cast(size, value.dtype)),
        "all_gather_v2": of_whole_cluster(lambda value, size: tf.concat([value] * int(size), 0)),
    }
    with (
        around_environment(_checked),
        around_start_of_worker(configuring, _nothing),
        around_worker_strategies(starting, on_host, _own_first_value, _nothing),
        around_collectives(collectives),
    ):
        yield servers


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    """What reads TF_CONFIG, which is checked before."""

    def load() -> Any:
        check_environment()
        return original()

    return load


def _own_first_value(original: Callable[..., Any]) -> Callable[..., Any]:
    """What gives the function for a variable's first value: not what the chief would send.

    The value is read before the step where it is a number of steps, or a rate.
    """

    def maker(extended: Any, *args: Any, **kwargs: Any) -> Any:
        make = original(extended, *args, **kwargs)

        def made() -> Any:
            with as_chief(extended):
                return make()

        return made

    return maker


def _nothing(_: Callable[..., Any]) -> Callable[..., None]:
    return lambda *_args, **_kwargs: None
