"""The process that uses the GPUs: ``python -m tools.gpu_truth.worker PARENT``.

It reads requests from standard input and writes answers to standard output, as messages of
`placer.worker.protocol`. It ends when its input ends, or when the process PARENT ends.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from placement_checks.core.errors import message_of
from placement_checks.logs import Log
from placement_checks.logs.live import catch_log
from placement_checks.placer.worker import protocol
from placement_checks.run.simulated_gpus import SEVERAL_STRATEGIES, simulated_gpus
from placement_checks.tf.patching import all_patched, eager_context
from placement_checks.tf.simulated_devices import configure_logical_cpus
from placement_checks.util.child import end_with_parent, reserve_stdout

from .programs import GPUS, PROGRAMS, Program

tf1 = tf.compat.v1

_LOGICAL_GPU = 1024  # MB of each logical GPU


def main() -> None:
    end_with_parent()
    requests = os.fdopen(os.dup(0), "rb")
    answers = reserve_stdout()
    while True:
        try:
            request, _ = protocol.read(requests)
        except EOFError:
            os._exit(0)
        answer = _run(request["name"], request["simulated"])
        protocol.write(answers, {}, json.dumps(answer).encode())


def _run(name: str, simulated: bool) -> dict[str, Any]:
    """Run a program; returns the fields of `machine.Observed`."""
    program = PROGRAMS[name]
    _configure(simulated)
    devices = (
        simulated_gpus(GPUS, devices="simulated") if simulated else all_patched(SEVERAL_STRATEGIES)
    )
    answer: dict[str, Any] = {"facts": {}, "executed": {}, "error": ""}
    with catch_log() as caught, devices:
        try:
            run = _run_in_session if program.kind == "graph" else _run_eagerly
            answer |= run(program)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {message_of(error)}"
    return {**answer, "placed": _placed(caught.log())}


def _configure(simulated: bool) -> None:
    """Create the two GPUs: two physical GPUs, or two logical GPUs of the only physical one."""
    if simulated:
        configure_logical_cpus(GPUS + 1)
    else:
        gpus = tf.config.list_physical_devices("GPU")[:GPUS]
        with contextlib.suppress(RuntimeError):  # the GPUs exist since an earlier program
            tf.config.set_visible_devices(gpus, "GPU")
            if len(gpus) < GPUS:
                logical = tf.config.LogicalDeviceConfiguration(memory_limit=_LOGICAL_GPU)
                tf.config.set_logical_device_configuration(gpus[0], [logical] * GPUS)
            else:
                for gpu in gpus:
                    tf.config.experimental.set_memory_growth(gpu, True)
    with contextlib.suppress(RuntimeError):
        tf.debugging.set_log_device_placement(True)


def _run_in_session(program: Program) -> dict[str, Any]:
    """Run a step with TensorFlow's default rewrites; returns the device of each executed node."""
    config = tf1.ConfigProto()
    config.CopyFrom(eager_context().config)  # has the logical devices
    config.allow_soft_placement = program.soft
    config.log_device_placement = True
    options = tf1.RunOptions(output_partition_graphs=True)
    metadata = tf1.RunMetadata()
    with tf.Graph().as_default() as graph:
        fetches = program.run()
        initializers = [tf1.global_variables_initializer(), tf1.tables_initializer()]
        with tf1.Session(graph=graph, config=config) as session:
            session.run(initializers)
            session.run(fetches, options=options, run_metadata=metadata)
    nodes = [node for partition in metadata.partition_graphs for node in partition.node]
    return {"executed": {node.name: node.device for node in nodes}}


def _run_eagerly(program: Program) -> dict[str, Any]:
    return {"facts": program.run() or {}}


def _placed(log: Log) -> Mapping[str, tuple[str | None, str | None]]:
    """Return the type and device of each node that is logged on one device only.

    An eager op is logged twice: without a node name, and as a node that has the op type as its
    name. Such names are left out, because a traced function may have a node of the same name.
    """
    found = defaultdict(set)
    for record in log.counts:
        found[record.node].add((record.op, record.device))
    eager = {kind for kind, _ in found.pop(None, ())}
    return {
        node: records.pop()
        for node, records in found.items()
        if node is not None and len(records) == 1 and node not in eager
    }


if __name__ == "__main__":
    main()
