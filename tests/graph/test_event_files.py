"""The event file for TensorBoard, read back by TensorFlow, which checks each record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.graphs import op

from placement_checks import Op
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.graph.event_files import write_event_file

tf1 = tf.compat.v1
OPS = {
    "a": op("a", "Const", "/gpu:0", "CPU:0"),
    "b": op("b", "Identity", "", "GPU:1"),
    "c": op("c", "Identity", "/gpu:0"),
}


@pytest.fixture
def graph_def() -> Any:
    with tf.Graph().as_default() as graph:
        with tf.device("/gpu:0"):
            a = tf.constant(np.ones((400, 3), np.float32), name="a")
            tf.identity(a, name="c")
        tf.identity(a, name="b")
    return graph.as_graph_def()


def events(file: Path) -> list[Any]:
    return list(tf1.train.summary_iterator(str(file)))


def devices(file: Path) -> dict[str, str]:
    graph = tf1.GraphDef.FromString(events(file)[-1].graph_def)
    return {node.name: node.device for node in graph.node}


def test_each_op_has_its_assigned_device(tmp_path: Path, graph_def: Any) -> None:
    before = graph_def.SerializeToString(deterministic=True)

    file = write_event_file(tmp_path / "new" / "logs", "train.py", graph_def, OPS)

    assert devices(file) == {
        "a": str(Device.parse("CPU:0").over(LOCALHOST)),
        "b": str(Device.parse("GPU:1").over(LOCALHOST)),
        "c": "",  # requested and assigned device differ
    }
    assert [event.file_version for event in events(file)] == ["brain.Event:2", ""]
    assert "tfevents" in file.name  # the version that TensorBoard expects
    assert file.stat().st_size < 1000  # of 4,800 bytes in the constant
    assert graph_def.SerializeToString(deterministic=True) == before
    assert list(file.parent.iterdir()) == [file]


def test_only_the_previous_event_file_is_removed(
    tmp_path: Path, graph_def: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "events.out.tfevents.1.host"
    other.write_text("of a run")
    monkeypatch.setattr("time.time", lambda: 1000.0)
    old = write_event_file(tmp_path, "train.py", graph_def, {})
    monkeypatch.setattr("time.time", lambda: 2000.0)

    new = write_event_file(tmp_path, "train.py", graph_def, OPS)
    again = write_event_file(tmp_path, "train.py", graph_def, OPS)

    assert old != new == again
    assert sorted(tmp_path.iterdir()) == sorted([other, new])


class Full:
    """A writer on a full disk."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> Full:
        return self

    def __exit__(self, *exc_info: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    def write(self, record: bytes) -> None:
        pass


def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, graph_def: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_event_file(tmp_path, "train.py", graph_def, OPS)
    monkeypatch.setattr(tf.io, "TFRecordWriter", Full)

    with pytest.raises(OSError, match="No space left on device"):
        write_event_file(tmp_path, "train.py", graph_def, OPS)

    assert list(tmp_path.iterdir()) == [old]
    assert devices(old)["b"]


def test_an_op_that_the_placement_lacks_has_no_device(tmp_path: Path, graph_def: Any) -> None:
    ops: dict[str, Op] = {"b": OPS["b"]}

    assert devices(write_event_file(tmp_path, "train.py", graph_def, ops))["a"] == ""
