"""The `with tf.device(…)` or device function that decided the device of an op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.graph.details import deciding_line

tf1 = tf.compat.v1
FOLDER = Path(__file__).parent


def on_host(op: Any) -> str:
    return "/cpu:0"


def as_it_is(op: Any) -> str:
    return str(op.device)


def with_task(task: int, op: Any) -> str:
    return f"/task:{task}/cpu:0"


def decided(op: tf.Operation) -> str | None:
    """The text of the deciding line."""
    line = deciding_line(op, FOLDER)
    return (
        None if line is None else Path(line.file).read_text().splitlines()[line.line - 1].strip()
    )


@pytest.fixture(autouse=True)
def graph(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(FOLDER)
    with tf.Graph().as_default():
        yield


def test_the_innermost_scope_that_names_a_device() -> None:
    with tf.device("/gpu:0"), tf.name_scope("outer"):
        with tf.device("/job:worker"):
            with tf.device("/gpu:1"):
                inner = tf.constant(1.0).op
            outer = tf.constant(1.0).op

    assert decided(inner) == 'with tf.device("/gpu:1"):'
    assert decided(outer) == 'with tf.device("/gpu:0"), tf.name_scope("outer"):'


def test_a_device_spec_names_a_device() -> None:
    with tf.device("/cpu:0"):
        with tf.device(tf.DeviceSpec(job="ps", device_type="GPU", device_index=1)):
            placed = tf.constant(1.0).op

    assert placed.device == "/job:ps/device:GPU:1"
    assert decided(placed) == (
        'with tf.device(tf.DeviceSpec(job="ps", device_type="GPU", device_index=1)):'
    )


def test_the_scope_that_names_a_job_decides_a_request_for_a_job() -> None:
    with tf.device("/job:ps"):
        with tf.device(tf.DeviceSpec()):
            placed = tf.constant(1.0).op

    assert decided(placed) == 'with tf.device("/job:ps"):'


def test_a_device_function_that_changes_the_device() -> None:
    with tf.device("/gpu:0"):
        with tf1.device(as_it_is), tf1.device(on_host):
            placed = tf.constant(1.0).op

    assert decided(placed) == "def on_host(op: Any) -> str:"


def test_a_device_function_that_keeps_the_device_does_not_decide() -> None:
    with tf.device("/gpu:0"):
        with tf1.device(as_it_is):
            placed = tf.constant(1.0).op

    assert decided(placed) == 'with tf.device("/gpu:0"):'


def test_a_device_function_alone() -> None:
    with tf1.device(lambda _op: "/gpu:1"):
        placed = tf.constant(1.0).op

    assert decided(placed) == 'with tf1.device(lambda _op: "/gpu:1"):'


@pytest.mark.parametrize(
    "function", [functools.partial(with_task, 1), tf1.train.replica_device_setter(ps_tasks=1)]
)
def test_the_scope_counts_for_device_functions_without_a_user_line(
    function: Callable[[Any], str],
) -> None:
    with tf1.device(function):
        placed = tf1.get_variable("w", [1]).op

    assert placed.device
    assert decided(placed) == "with tf1.device(function):"


def test_a_cleared_scope_does_not_decide() -> None:
    with tf.device("/gpu:0"):
        with tf.device(None), tf1.device(on_host):
            inside = tf.constant(1.0).op

    assert decided(inside) == "def on_host(op: Any) -> str:"


def test_a_cleared_scope_does_not_decide_an_equal_request() -> None:
    with tf.device("/cpu:0"):
        with tf.device(None), tf1.device(on_host):
            inside = tf.constant(1.0).op

    assert decided(inside) == "def on_host(op: Any) -> str:"


def test_an_op_without_request_has_no_scope() -> None:
    with tf.device("/gpu:0"):
        with tf.device(None):
            cleared = tf.constant(1.0).op

    assert (decided(cleared), decided(tf.constant(1.0).op)) == (None, None)


def test_a_line_of_a_library_is_reported_only_if_it_is_the_program(tmp_path: Path) -> None:
    library = tmp_path / "site-packages/towers/layers.py"
    library.parent.mkdir(parents=True)
    library.write_text("with tf.device('/gpu:0'):\n    placed = tf.constant(1.0).op")
    names: dict[str, Any] = {"tf": tf}
    exec(compile(library.read_text(), str(library), "exec"), names)

    line = deciding_line(names["placed"], library.parent)

    assert line is not None
    assert (Path(line.file).resolve(), line.line) == (library, 1)
    assert deciding_line(names["placed"], FOLDER) is None
    assert deciding_line(names["placed"], None) is None
