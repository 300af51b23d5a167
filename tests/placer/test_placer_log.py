"""What the placer logs, read in the placer process."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from placement_checks.placer.worker.placer_log import logged_nodes

HOST = "/job:localhost/replica:0/task:0/device:"
# What TensorFlow takes for a node's name and an op's type (core/framework/node_def_util.cc).
NAMES = st.text("aZ09_.\\/>-", min_size=1)
TYPES = st.text("aZ09_>", min_size=1)
DEVICES = st.sampled_from([f"{HOST}GPU:1", "/job:ps/replica:0/task:12/device:CPU:0"])


def nodes(*lines: str) -> list[tuple[bytes, bytes]]:
    return list(logged_nodes(io.BytesIO("".join(lines).encode())))


@given(st.lists(st.tuples(NAMES, TYPES, DEVICES)))
def test_every_node_is_read(placed: list[tuple[str, str, str]]) -> None:
    lines = [f"{name}: ({kind}): {device}\n" for name, kind, device in placed]

    assert nodes(*lines) == [(name.encode(), device.encode()) for name, _, device in placed]


def test_what_a_session_says_of_its_devices_is_no_node() -> None:
    log = (
        "Device mapping:\n",
        f"{HOST}XLA_CPU:0 -> device: XLA_CPU device\n",
        "\n",
        f"x: (Const): {HOST}CPU:0\n",
    )

    assert nodes(*log) == [(b"x", f"{HOST}CPU:0".encode())]


def test_a_line_that_ends_early_has_no_device_that_exists() -> None:
    """So that the node counts as not placed (`placer.answers`)."""
    whole = f"x: (Const): {HOST}CPU:0"

    for length in range(len(whole)):
        assert (b"x", f"{HOST}CPU:0".encode()) not in nodes(whole[:length])
