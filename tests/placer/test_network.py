"""Access to the placer process, with and without a network of its own."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
import tensorflow as tf
from placer.query import answer_of

from placement_checks import place
from placement_checks.core.errors import PlacerError
from placement_checks.placer import placing
from placement_checks.placer.worker import gpu_less_server, main, network
from placement_checks.placer.worker.client import PlacerProcess, Request
from placement_checks.util import loopback


def build() -> None:
    with tf.device("/gpu:1"):
        tf.matmul(tf.ones([2, 2]), tf.ones([2, 2]), name="product")


def placed() -> set[str]:
    """The devices of all ops of `build`."""
    return {op.assigned.short for op in place(build).ops.values() if op.assigned}


def placer_process() -> PlacerProcess:
    """The placer process, which a fixture may have replaced."""
    current: PlacerProcess = vars(placing)["phantom"]
    return current


def pid() -> int:
    """The ID of the placer process."""
    place(build)
    number = placer_process().pid
    assert number is not None
    return number


def leaves_the_shared_network() -> bool:
    """Whether this system lets a process have a network of its own."""
    process = os.fork()
    if process == 0:
        os._exit(int(not network.leave_shared()))
    return os.waitpid(process, 0)[1] == 0


def test_the_process_has_its_own_network() -> None:
    if not leaves_the_shared_network():
        pytest.skip("this system lets no process have one")
    ports = ports_of(ESTABLISHED) | ports_of(LISTENING)

    assert ports
    assert not any(answers("127.0.0.1", port) for port in ports)
    assert placer_process().isolation == "own-network"


@pytest.fixture(scope="module")
def _shared_network() -> Iterator[None]:
    """A placer on a system that forbids network namespaces."""
    environment = {**placer_process()._environment, main.SHARED_NETWORK: "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "phantom", PlacerProcess(environment))
        yield
        placer_process().stop()


@pytest.mark.usefixtures("_shared_network")
def test_nobody_can_connect_to_the_master_in_a_shared_network() -> None:
    # The connection to the master, and maybe a connection of the master to a worker.
    ports = ports_of(ESTABLISHED) - ports_of(LISTENING) | {master_port()}
    with socket.create_server(("0.0.0.0", 0)) as open_to_all:
        for host in filter(None, ("127.0.0.1", own_address())):
            assert answers(host, open_to_all.getsockname()[1])
            assert not any(answers(host, port) for port in ports)
    assert placed() == {"/device:GPU:1"}
    assert placer_process().isolation == "filtered"


@pytest.mark.usefixtures("_shared_network")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_only_connect_to_a_worker() -> None:
    ports = ports_of(ESTABLISHED) | ports_of(LISTENING)

    reached = {port for port in ports if as_nobody(partial(answers, "127.0.0.1", port))}

    assert reached == ports_of(LISTENING) - {master_port()}
    assert len(reached) == 1


def test_a_foreign_process_on_the_port_is_a_failure(
    tmp_path: Path,
) -> None:
    """Otherwise any user of this machine could disable the placement rules."""
    (tmp_path / "sitecustomize.py").write_text(
        "from placement_checks.util import loopback\n"
        "def reserve(number, limit):\n"
        "    raise ConnectionError('found that another process had connected')\n"
        "loopback.reserve = reserve\n"
    )
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    process = PlacerProcess({"PYTHONPATH": path, main.SHARED_NETWORK: "1"})

    with pytest.raises(PlacerError, match="found that another process had connected"):
        answer_of(process, Request(b"", 1, [], [], soft=False))


def test_the_master_answers_no_connection_before_its_port_is_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A faster process can connect, but gets no answer."""
    refused = []

    def reserve(number: int, _limit: float) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{number}") as channel:
            create = channel.unary_unary("/tensorflow.MasterService/CreateSession")
            with pytest.raises(grpc.RpcError) as caught:
                create(b"", timeout=1)
        refused.append(caught.value.code())
        raise OSError("somebody was quicker")

    monkeypatch.setattr(loopback, "reserve", reserve)
    with pytest.raises(OSError, match="somebody was quicker"):
        gpu_less_server.GpuLessServer(is_filtered=True)

    assert refused == [grpc.StatusCode.DEADLINE_EXCEEDED]


ESTABLISHED, LISTENING = "01", "0A"


def master_port() -> int:
    """The port of the master, which listens on all interfaces."""
    (port,) = (port for address, port in addresses_of(LISTENING) if not int(address, 16))
    return port


def ports_of(state: str) -> set[int]:
    return {port for _, port in addresses_of(state)}


def addresses_of(state: str) -> set[tuple[str, int]]:
    """The local addresses and TCP ports of the placer's sockets in a state."""
    home = Path(f"/proc/{pid()}")
    inodes = set()
    for descriptor in (home / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
            inodes.add(match[1] if match else "")
    rows = [
        row.split()
        for table in (home / "net/tcp", home / "net/tcp6")
        if table.exists()
        for row in table.read_text().splitlines()[1:]
    ]
    local = (row[1].split(":") for row in rows if row[3] == state and row[9] in inodes)
    return {(address, int(port, 16)) for address, port in local}


def as_nobody(holds: Callable[[], bool]) -> bool:
    """Run code as another user without privileges."""
    process = os.fork()
    if process == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        os._exit(int(not holds()))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def own_address() -> str | None:
    """An address of this machine other than loopback, from a UDP socket that sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
