"""A program of a cluster runs alone: its servers are recorded, and no port is opened."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.capture.child_process.servers import record_servers
from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError

tf1 = tf.compat.v1
CLUSTER = {"ps": ["ps0:2222"], "worker": ["worker0:2222", "worker1:2223"]}
RECORDED = {"ps": {0: "ps0:2222"}, "worker": {0: "worker0:2222", 1: "worker1:2223"}}


LISTENS = "0A"  # the state, in /proc/net/tcp


def listening() -> int:
    """The number of listening sockets of this process."""
    tables = [Path(f"/proc/self/net/{table}") for table in ("tcp", "tcp6")]
    rows = [
        row.split() for table in tables if table.exists() for row in table.read_text().splitlines()
    ]
    waiting = {f"socket:[{row[9]}]" for row in rows if row[3] == LISTENS}
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and os.readlink(link) in waiting for link in links)


@pytest.mark.parametrize(
    "make",
    [
        tf1.train.Server,
        tf1.distribute.Server,
        tf.distribute.Server,
        tf1.compat.v1.train.Server,
    ],
)
def test_a_server_reports_its_arguments(make: Callable[..., Any]) -> None:
    before = listening()
    config = tf1.ConfigProto(log_device_placement=True)
    with record_servers() as servers:
        server = make(tf.train.ClusterSpec(CLUSTER), "worker", task_index=1, config=config)

        assert isinstance(server, tf.distribute.Server)
        assert server.target == "grpc://worker1:2223"
        assert server.server_def.job_name == "worker"
        assert server.server_def.default_session_config.log_device_placement
        assert listening() == before

    (recorded,) = servers
    assert recorded == RecordedServer(RECORDED, "worker", 1)
    assert recorded.name == "/job:worker/task:1"
    assert not recorded.is_alone


@pytest.mark.parametrize(
    "cluster",
    [
        CLUSTER,
        RECORDED,
        tf.train.ClusterSpec(CLUSTER).as_cluster_def(),
        tf.train.ServerDef(
            cluster=tf.train.ClusterSpec(CLUSTER).as_cluster_def(), protocol="grpc"
        ),
    ],
)
def test_clusters_in_each_form(cluster: Any) -> None:
    with record_servers() as servers:
        tf1.train.Server(cluster, job_name="ps", task_index=0, start=False).start()
    assert servers == [RecordedServer(RECORDED, "ps", 0)]


def test_a_cluster_that_lacks_tasks() -> None:
    with record_servers() as servers:
        server = tf1.train.Server({"worker": {1: "b:1", 7: "c:1"}}, "worker", 7)
        assert server.target == "grpc://c:1"
    assert servers[0].cluster == {"worker": {1: "b:1", 7: "c:1"}}


def test_a_local_server() -> None:
    with record_servers() as servers:
        server = tf1.train.Server.create_local_server()
        assert server.target.startswith("grpc://localhost:")
    (recorded,) = servers
    assert recorded.is_alone
    assert (recorded.job, recorded.task) == ("localhost", 0)


@pytest.mark.parametrize(
    ("cluster", "job", "message", "fix"),
    [
        (
            CLUSTER,
            "ps",
            "this is a parameter server: it waits in server.join()",
            "run a worker instead, with arguments such as --job_name=worker --task_index=0",
        ),
        (
            {"worker": ["a:1"], "chief": ["b:1"]},
            "worker",
            "it waits in server.join()",
            "run a chief instead, with arguments such as --job_name=chief --task_index=0",
        ),
        (
            {"evaluator": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]},
            "ps",
            "this is a parameter server: it waits in server.join()",
            "run a worker instead, with arguments such as --job_name=worker --task_index=0",
        ),
        (
            {"trainer": ["a:1"], "ps": ["b:1"]},
            "ps",
            "this is a parameter server: it waits in server.join()",
            "run a trainer instead, with arguments such as --job_name=trainer --task_index=0",
        ),
        (
            {"worker": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]},
            "worker",
            "it waits forever in server.join()",
            'run a coordinator instead: --machine "chief*1; ps*2; worker*2: gpu*2"',
        ),
        (
            {"worker": ["a:1"]},
            "worker",
            "it waits forever in server.join()",
            'run a coordinator instead: --machine "chief*1; ps*2; worker*2: gpu*2"',
        ),
    ],
)
def test_a_server_that_waits(
    cluster: dict[str, list[str]], job: str, message: str, fix: str
) -> None:
    with record_servers():
        server = tf1.train.Server(cluster, job, 0)
        with pytest.raises(InputError) as error:
            server.join()

    assert str(error.value) == f"/job:{job}/task:0: {message}; {fix}"


@pytest.mark.parametrize(
    ("job", "task", "fix"),
    [
        ("worker", 5, "the job worker has tasks 0 and 1"),
        ("worcer", 0, "its jobs are ps, worker"),
    ],
)
def test_a_task_that_the_cluster_lacks(job: str, task: int, fix: str) -> None:
    with record_servers() as servers, pytest.raises(InputError) as error:
        tf1.train.Server(CLUSTER, job, task)

    assert str(error.value) == (
        f"/job:{job}/task:{task} is not in the cluster of the program's server; {fix}"
    )
    assert servers == []


def test_an_invalid_address_is_refused() -> None:
    with record_servers(), pytest.raises(InputError, match="write it like host0:2222") as error:
        tf1.train.Server({"worker": ["host0"]}, "worker", 0)
    assert error.value.object == "the cluster of the server"


def test_a_server_ends_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library must not stop a server that it did not create."""
    errors: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", errors.append)
    with record_servers():
        kept = tf1.train.Server(CLUSTER, "worker", 0)
        tf1.train.Server(CLUSTER, "worker", 1)
        with pytest.raises(ValueError, match="explicit `job_name`"):
            tf1.train.Server(CLUSTER)
        gc.collect()
    del kept
    gc.collect()

    assert not errors


def test_servers_are_restored() -> None:
    with record_servers() as servers:
        pass
    server = tf.distribute.Server.create_local_server()

    assert server.target.startswith("grpc://localhost:")
    assert not server.target.endswith(":0")
    assert servers == []
