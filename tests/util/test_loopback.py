"""A port that is closed to everybody except for existing connections."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from placement_checks.util import loopback


def test_an_ipv6_socket_that_takes_ipv4_too_is_closed_for_both() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        address = ("127.0.0.1", server.getsockname()[1])
        with socket.create_connection(address), server.accept()[0]:
            loopback.reserve(address[1], limit=5)

            for host in ("127.0.0.1", "::1"):
                with pytest.raises(OSError, match=r"timed out|unreachable|Cannot assign"):
                    socket.create_connection((host, address[1]), timeout=0.5)


def test_a_used_port_stays_open_for_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            loopback.reserve(address[1], limit=5)

            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.5)
            with server.accept()[0] as accepted:
                client.send(b"asked")
                assert accepted.recv(9) == b"asked"
                accepted.send(b"answered")
                assert client.recv(9) == b"answered"


@pytest.mark.parametrize("end", ["", "s.shutdown(socket.SHUT_WR); "])
def test_another_process_that_connected_first_is_reported(end: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        stranger = subprocess.Popen(
            [
                sys.executable,
                "-Sc",
                f"import socket; s = socket.create_connection({address}); {end}"
                "print(flush=True); s.recv(1)",
            ],
            stdout=subprocess.PIPE,
        )
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            with (
                socket.create_connection(address),
                pytest.raises(ConnectionError, match="another process had connected"),
            ):
                loopback.reserve(address[1], limit=5)
        finally:
            stranger.kill()
            stranger.communicate()


def test_a_port_to_which_no_process_connects_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(ConnectionError, match="could not connect to its own port"):
            loopback.reserve(server.getsockname()[1], limit=0)


def test_a_port_on_which_this_process_does_not_listen_is_reported() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="no socket of this process listens on port"):
            loopback.close_to_others(bound.getsockname()[1])
