"""Parsing the placer's log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.placer.worker.client import logged_devices

HOST = "/job:localhost/replica:0/task:0/device:"
# Valid names of nodes and op types in TensorFlow (core/framework/node_def_util.cc).
NAMES = st.text("aZ09_.\\/>-", min_size=1)
TYPES = st.text("aZ09_>", min_size=1)
DEVICES = st.sampled_from([f"{HOST}GPU:1", "/job:ps/replica:0/task:12/device:CPU:0"])


@given(st.lists(st.tuples(NAMES, TYPES, DEVICES), unique_by=lambda node: node[0]))
def test_every_node_is_read(placed: list[tuple[str, str, str]]) -> None:
    lines = [f"{name}: ({kind}): {device}\n" for name, kind, device in placed]

    assert logged_devices("".join(lines)) == {name: device for name, _, device in placed}


def test_lines_about_devices_of_a_session_are_ignored() -> None:
    log = (
        f"Device mapping:\n{HOST}XLA_CPU:0 -> device: XLA_CPU device\n\nx: (Const): {HOST}CPU:0\n"
    )

    assert logged_devices(log) == {"x": f"{HOST}CPU:0"}


def test_a_repeated_node_has_one_device() -> None:
    on_gpu = f"x: (Const): {HOST}GPU:1\n"

    assert logged_devices(on_gpu + on_gpu) == {"x": f"{HOST}GPU:1"}
    with pytest.raises(ValueError, match=f"placed 'x' on {HOST}CPU:0 and on {HOST}GPU:1"):
        logged_devices(f"x: (Const): {HOST}CPU:0\n" + on_gpu)


def test_a_cut_line_has_no_existing_device() -> None:
    """So `check_answer` reports the node as not placed."""
    whole = f"x: (Const): {HOST}CPU:0"

    for length in range(len(whole)):
        assert logged_devices(whole[:length]).get("x") != f"{HOST}CPU:0"
