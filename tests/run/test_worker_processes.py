"""Two real workers on loopback compute the same as their simulation in one process."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.forked import printed, start_forked
from support.workers import watched_workers

from placement_checks import place
from placement_checks.core.devices import Device
from placement_checks.core.program import CapturedProgram
from placement_checks.run.cluster.clusters import reserve_port
from placement_checks.run.runnable import make_runnable
from placement_checks.run.session import ProgramSession

MACHINE = "worker*2"
# Ops that exist only in functions: arguments, results and sends.
# The packed gradients; each has its own sum here.
PACKING = {"ConcatV2", "SplitV", "Pack", "Prod", "Const"}
OF_FUNCTIONS = {"_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv"}


@pytest.fixture(scope="module")
def program(fixtures: Path) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(fixtures / "programs/workers"))
        return importlib.import_module("workers_mirrored")


@pytest.fixture(scope="module")
def trained(fixtures: Path) -> Sequence[dict[str, Any]]:
    """Returns the last output of each of two processes: its weights, and devices of ops."""
    ports = [reserve_port() for _ in range(2)]
    cluster = {"worker": [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]}
    running = [
        start_forked(
            [fixtures / "programs/workers/workers_mirrored.py"],
            environment={
                **os.environ,
                "TF_GRPC_REUSE_PORT": "1",
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            },
        )
        for index in range(2)
    ]
    try:
        return [json.loads(printed(process)) for process in running]
    finally:
        for process in running:
            process.kill()
        for port in ports:
            port.close()


def test_ops_run_where_the_placer_puts_them(
    program: ModuleType, trained: Sequence[dict[str, Any]]
) -> None:
    evidence = place(watched_workers(program.train, MACHINE, gpus=0), machine=MACHINE)

    compared = 0
    for task, worker in enumerate(trained):
        prefix = f"worker_{task}/" if task else ""
        for name, (kind, device) in worker["placed"].items():
            full = prefix + name
            if kind == "CollectiveReduceV2" and full not in evidence.ops:
                full += "/part_0"
            if kind not in OF_FUNCTIONS and (full in evidence.ops or kind not in PACKING):
                op = evidence.ops[full]
                assert (op.type, op.assigned) == (kind, Device.parse(device)), name
                compared += 1
    of_workers = [op for op in evidence.ops.values() if op.type not in ("VarHandleOp", "NoOp")]
    assert compared > 0.8 * len(of_workers)


def test_weights_equal_workers_on_one_host(
    program: ModuleType, trained: Sequence[dict[str, Any]]
) -> None:
    built = watched_workers(program.train, MACHINE, gpus=1).built
    assert built is not None
    assert built.on_one_host is not None

    weights = weights_after(built.on_one_host, program)

    for worker in trained:
        for own, expected in zip(worker["weights"], weights, strict=True):
            assert np.array(own) == pytest.approx(expected, rel=1e-5)


def weights_after(built: CapturedProgram, program: ModuleType) -> list[Any]:
    """Returns the weights of the first worker after steps on the rows of each worker."""
    batches = [
        list(program.shards(tf.distribute.InputContext(2, worker, 2))) for worker in range(2)
    ]
    with ProgramSession(make_runnable(built, "simulated"), 60.0) as session:
        session.initialize({})
        for step in range(program.STEPS):
            parts = [batches[worker][step] for worker in range(2)]
            given = {"x": parts[0][0], "y": parts[0][1]}
            given |= {"worker_1/x": parts[1][0], "worker_1/y": parts[1][1]}
            session.step({f"{name}:0": rows.numpy() for name, rows in given.items()})
        values = session.values()
    return [values["weights_0"], values["weights_1"]]
