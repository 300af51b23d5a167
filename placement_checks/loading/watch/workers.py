"""Watches the workers of a strategy over several processes, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from placement_checks.core.cluster_spec import NO_CLUSTER, Addresses, environment_of
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.recorded_server import RecordedServer
from placement_checks.core.script import Script
from placement_checks.loading.traced.coordinated import SERVERS
from placement_checks.loading.watch.joined_workers import joined_workers, on_servers
from placement_checks.loading.watch.process import NO_VARIABLES, watched
from placement_checks.loading.watch.recorded import RecordedProgram
from placement_checks.util.progress import doing

_TRAINING = ("chief", "worker")  # the jobs whose tasks have replicas


def watched_workers(script: Script, gpus: int, machine: Machine | None) -> RecordedProgram:
    """What a program has built when it comes to its first training step, in all of its workers.

    Args:
        script: the program.
        gpus: how many GPUs each worker is told that there are.
        machine: the cluster that it finds in TF_CONFIG; None for what is there.

    Raises:
        InputError: in one worker it failed before, never trains, or took too long.
    """
    first = watched(script, gpus, _environment(script, machine))
    if not first.is_worker:
        return first
    assert first.server is not None
    if SERVERS in first.server.cluster:
        return on_servers(first, gpus)
    workers = {(first.server.job, first.server.task): first}
    for server in _others(first.server):
        with doing(f"as {server.name}"), _named(server):
            environment = environment_of(server.cluster, server.job, server.task)
            worker = watched(script, gpus, environment)
            _check_is(server, worker, script.name)
            workers[server.job, server.task] = worker
    return joined_workers([workers[task] for task in sorted(workers)])


def _environment(script: Script, machine: Machine | None) -> Mapping[str, str]:
    """What a program finds in TF_CONFIG as the task whose server sessions are opened on."""
    if machine is None or script.v1:
        return NO_VARIABLES
    if machine.is_local:
        return NO_CLUSTER
    master = machine.master
    return environment_of(_made_up_addresses(machine), master.job, master.index)


def _made_up_addresses(machine: Machine) -> Addresses:
    """An address for each task, where nobody connects to any."""
    return {
        job: {index: f"{job}-{index}.invalid:2222" for index in indices}
        for job, indices in machine.jobs.items()
    }


def _others(first: RecordedServer) -> Iterator[RecordedServer]:
    """The other workers of a cluster."""
    for job in _TRAINING:
        for task in sorted(first.cluster.get(job, ())):
            if (job, task) != (first.job, first.task):
                yield RecordedServer(first.cluster, job, task)


def _check_is(server: RecordedServer, worker: RecordedProgram, program: str) -> None:
    """Check that a worker was the task that TF_CONFIG has told it to be."""
    it = worker.server
    if it is None or it.name != server.name:
        was = "a host without a cluster" if it is None else it.name
        raise InputError(
            program,
            f"it trains as {was}: it takes its task from elsewhere than TF_CONFIG",
            "let it read TF_CONFIG, as tf.distribute.cluster_resolver.TFConfigClusterResolver "
            "does, so that every worker can be watched",
        )


@contextlib.contextmanager
def _named(server: RecordedServer) -> Iterator[None]:
    """Name the worker in the errors of this block."""
    try:
        yield
    except InputError as error:
        raise InputError(
            error.object,
            f"as {server.name}, {error.message}",
            error.fix,
            details=error.details,
        ) from None
