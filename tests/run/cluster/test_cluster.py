"""A cluster of processes: its start, the errors when a part of it fails, and its end."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import tensorflow as tf
from support.forked import printed, start_forked

from placement_checks import Cluster, LocalCluster, Machine, local_cluster
from placement_checks.core.errors import InputError, PlacerError, UsageError
from placement_checks.run.cluster import clusters
from placement_checks.run.cluster.clusters import reserve_port
from placement_checks.util import child

tf1 = tf.compat.v1
ROOT = Path(__file__).parents[3]
SMALL = "ps*1; worker*2: gpu*1"


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time limit for sessions, because a session of a dead task never ends."""
    monkeypatch.setattr(clusters, "_GRACE", 0.2)


def build(num_gpus: int = 1) -> dict[str, Any]:
    """A tower a worker, and a variable on the parameter server."""
    with tf.device("/job:ps/task:0/cpu:0"):
        w = tf1.get_variable("w", [2, 1])
    losses, inputs = [], []
    for worker in range(2):
        with tf.device(f"/job:worker/task:{worker}/gpu:0"):
            x = tf1.placeholder(tf.float32, [None, 2])
            losses.append(tf.reduce_mean(tf.square(x @ w - 1.0)))
            inputs.append({"x": x})
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(
        tf.add_n(losses), colocate_gradients_with_ops=True
    )
    return {"train_op": train_op, "loss": losses, "inputs": inputs}


def amid_training(call: Callable[[], object]) -> Callable[[np.random.Generator, int], Any]:
    """Returns rows for `build`, and calls ``call`` with the tenth batch."""
    batches = itertools.count(1)

    def batch(rng: np.random.Generator, n: int) -> dict[str, Any]:
        if next(batches) == 10:
            call()
        return {"x": rng.normal(size=(n, 2))}

    return batch


def test_devices_are_named_after_the_simulated_gpus(cluster: LocalCluster) -> None:
    trained = Cluster(cluster.spec, Machine.parse(SMALL), simulated=True).train(build, steps=2)
    placement = trained.placement

    assert str(placement.ops["w"].assigned) == "/job:ps/replica:0/task:0/device:CPU:0"
    assert {str(op.assigned) for op in placement.ops.values() if op.type == "MatMul"} == {
        f"/job:worker/replica:0/task:{task}/device:GPU:0" for task in (0, 1)
    }
    assert (placement.placer, str(placement.machine)) == (
        "session", "ps*1: cpu*1; worker*2: gpu*1",
    )  # fmt: skip
    assert [len(losses) for losses in trained.losses] == [2, 2]


@pytest.mark.parametrize("task", [("worker", 1), ("worker", 0), ("ps", 0)])
def test_a_killed_task_is_named(task: tuple[str, int]) -> None:
    job, index = task
    begin = time.monotonic()
    with local_cluster(SMALL) as cluster:
        started = time.monotonic()
        killing = amid_training(lambda: cluster.kill(job, index))
        with pytest.raises(InputError) as caught:
            cluster.train(build, batch=killing, steps=1_000_000)
        reported_at = time.monotonic()
        with pytest.raises(InputError, match="its process was ended by SIGKILL;"):
            cluster.train(build)
        left = [pid for other, pid in cluster.pids.items() if other != task]
    ended = time.monotonic()

    assert caught.value.object == f"/job:{job}/task:{index}"
    assert caught.value.message.startswith("its process was ended by SIGKILL during ")
    assert caught.value.message.endswith(f" of {build.__qualname__}")
    assert not any(psutil.pid_exists(pid) for pid in left)
    assert reported_at - started < 10
    assert ended - reported_at < 10
    assert started - begin < 180


def test_a_hanging_task_is_an_error() -> None:
    with local_cluster(SMALL) as cluster:
        cluster.train(build)
        stopping = amid_training(lambda: os.kill(cluster.pids["worker", 1], signal.SIGSTOP))
        with pytest.raises(InputError, match="check that all tasks"):
            cluster.train(build, batch=stopping, steps=1_000_000, seconds=2)


def test_a_task_that_ends_during_training_is_named() -> None:
    with local_cluster(SMALL) as cluster:
        theirs = Cluster(cluster.spec, cluster.machine, simulated=True)
        killing = amid_training(lambda: cluster.kill("worker", 1))
        with pytest.raises(InputError) as caught:
            theirs.train(build, batch=killing, steps=1_000_000)

    address = cluster.spec["worker"][1]
    assert caught.value.object == "/job:worker/task:1"
    assert re.fullmatch(
        rf"no server answers at {address}: Connection refused during step \d+ of build",
        caught.value.message,
    )


def test_a_task_that_nobody_serves_is_an_error() -> None:
    with reserve_port() as silent:  # bound, but not listening
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        cluster = Cluster({"ps": {0: address}}, Machine.parse("ps*1"))
        begin = time.monotonic()
        with pytest.raises(InputError) as caught:
            cluster.train(build)

    assert str(caught.value) == (
        f"/job:ps/task:0: no server answers at {address}: Connection refused; start its "
        "tf.distribute.Server, or correct its address in the ClusterSpec"
    )
    assert time.monotonic() - begin < 10


def test_cluster_without_a_task_of_its_machine() -> None:
    with pytest.raises(InputError) as caught:
        Cluster({"ps": ["a:1"]}, Machine.parse("ps*1; worker*1"))
    assert str(caught.value) == (
        "/job:worker/task:0 is a task of the machine, but has no address in the ClusterSpec; "
        "list the same tasks in both"
    )


def test_two_tasks_at_one_address() -> None:
    with pytest.raises(
        InputError, match="/job:ps/task:0 and /job:worker/task:0 both have the address"
    ):
        Cluster({"ps": ["a:1"], "worker": ["a:1"]})


def soft() -> dict[str, Any]:
    with tf.device("/job:worker/task:0/gpu:7"):
        ran = tf.constant(1.0, name="ran")
    return {"train_op": ran, "config": tf1.ConfigProto(allow_soft_placement=True)}


def test_the_session_keeps_soft_placement_and_devices_of_the_program(
    cluster: LocalCluster,
) -> None:
    trained = Cluster(cluster.spec).train(soft)

    assert (
        str(trained.placement.ops["ran"].assigned) == "/job:worker/replica:0/task:0/device:CPU:0"
    )
    assert str(trained.placement.machine) == "ps*2: cpu*1; worker*2: gpu*2"


def test_tasks_listen_on_loopback_only(cluster: LocalCluster) -> None:
    others = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }
    if not others:
        pytest.skip("this machine has no address but loopback")
    for tasks in cluster.spec.values():
        for address in tasks.values():
            port = int(address.rpartition(":")[2])
            socket.create_connection(("127.0.0.1", port), 5).close()
            for other in others:
                with pytest.raises(OSError, match=r"refused|timed out"):
                    socket.create_connection((other, port), 5)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit('no TensorFlow')", "a local cluster did not start: its process ended with "),
        (
            "print('no TensorFlow', file=sys.stderr, flush=True); "
            "print(json.dumps({'job': 'ps', 'index': 0, 'answer': 'port taken'}), flush=True); "
            "sys.stdin.read()",
            "/job:ps/task:0 did not start: port taken; try again: every start uses other ports",
        ),
    ],
)
def test_a_failed_start_has_a_reason_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    """A stand-in for the process of the servers."""
    command = [sys.executable, "-Sc", f"import json, sys; sys.stdin.readline(); {code}"]
    monkeypatch.setattr(child, "_command", lambda _module: command)
    monkeypatch.setattr(clusters, "_server", Mock(for_children=lambda _: None))
    before = psutil.Process().children()

    with pytest.raises(PlacerError) as caught, local_cluster("ps*1"):
        pass

    assert str(caught.value).startswith(message)
    assert caught.value.details == "no TensorFlow"
    assert psutil.Process().children() == before


# Replaces TensorFlow in the process of the servers: a server listens at its address.
LISTENS = """
import socket
from types import SimpleNamespace

def Server(spec, job_name, task_index, config):
    address = spec[job_name][str(task_index)]
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(("127.0.0.1", int(address.rpartition(":")[2])))
    listening.listen()
    return SimpleNamespace(target=f"grpc://{address}", listening=listening)

class OpError(Exception): pass

compat = SimpleNamespace(v1=SimpleNamespace(ConfigProto=dict))
distribute = SimpleNamespace(Server=Server)
errors = SimpleNamespace(OpError=OpError)
"""


def test_tasks_end_with_their_parent_process(tmp_path: Path) -> None:
    """A forked process holds the pipes open."""
    (tmp_path / "tensorflow.py").write_text(LISTENS)
    script = tmp_path / "start.py"
    script.write_text(
        "import os, time\nimport placement_checks\n"
        "with placement_checks.local_cluster('ps*1; worker*1') as cluster:\n"
        "    forked = os.fork()\n"
        "    if forked:\n        print(forked, *cluster.pids.values(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        forked, *tasks = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        all_of_them = [*tasks, tasks[0].parent()]
        process.kill()
    try:
        assert len(all_of_them) == 3
        _, alive = psutil.wait_procs(all_of_them, timeout=20)
        assert alive == []
    finally:
        forked.kill()


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (
            "gpu*2",
            "machine 'gpu*2' is a single host, not a cluster; write it like \"ps*2; worker*2\"",
        ),
        (
            "worker*33",
            "machine 'worker*33: cpu*1' has 33 tasks, but at most 32 processes are started; "
            "place the program instead: the placer needs no processes",
        ),
        (
            "ps*1; worker*1: cpu*2, gpu*1",
            "machine 'ps*1: cpu*1; worker*1: cpu*2, gpu*1': /job:worker/task:0 has several CPU "
            "devices in addition to GPUs, but CPU devices simulate GPUs; give it one CPU device",
        ),
    ],
)
def test_machines_that_cannot_be_started(machine: str, message: str) -> None:
    with pytest.raises(UsageError) as caught, local_cluster(machine):
        pass
    assert str(caught.value) == message


def test_a_program_without_a_train_op(cluster: LocalCluster) -> None:
    def nothing() -> None:
        with tf.device("/job:ps/task:0"):
            tf1.get_variable("v", [2])

    with pytest.raises(InputError, match="declares no train_op; return"):
        cluster.train(nothing)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_strategies_in_their_own_processes(fixtures: Path, strategy: str) -> None:
    """Strategies of TensorFlow 2 compute the same on several processes as on one."""
    workers = 2 if strategy == "mirrored" else 1
    ports = [reserve_port() for _ in range(workers)]
    cluster = {"worker": [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]}
    running = [
        start_forked(
            [fixtures / "programs/workers/worker_strategies.py", strategy],
            environment={
                **os.environ,
                "TF_GRPC_REUSE_PORT": "1",
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            },
        )
        for index in range(workers)
    ]
    try:
        results = [json.loads(printed(process)) for process in running]
    finally:
        for process in running:
            process.kill()
        for port in ports:
            port.close()

    sys.path.insert(0, str(fixtures / "programs/workers"))
    try:
        train_alone = import_module("worker_strategies").train_alone
    finally:
        sys.path.remove(str(fixtures / "programs/workers"))
    for one in results:
        assert one["w"] == pytest.approx(train_alone(), rel=1e-5)
    job = "worker" if strategy == "mirrored" else "ps"
    assert sorted(device for one in results for device in one["devices"]) == [
        f"/job:{job}/replica:0/task:{task}/device:CPU:0" for task in (0, 1)
    ]
