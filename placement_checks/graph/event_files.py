"""Writes a graph for TensorBoard, each op with the device that the placer gave it.

TensorFlow writes what a program asks for, so that TensorBoard's colours by device are grey where
it asks for nothing (tensorflow/tensorboard#640).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.util import event_pb2

from placement_checks.core.errors import InputError
from placement_checks.core.placement import Op
from placement_checks.graph.graph_def import without_large_constants

_OURS = ".placement_checks"  # how the names of our files end
_VERSION = "brain.Event:2"  # of the form of event files, which each begins with


def write_event_file(folder: Path, program: str, graph_def: Any, ops: Mapping[str, Op]) -> Path:
    """Write the event file, and remove the one that was written into the folder before.

    TensorBoard shows one graph of a folder, the last one.

    Args:
        folder: it is made if it is not there.
        program: what the graph is called in errors.
        graph_def: the graph, which is not changed; large constants are written without values.
        ops: by name, with their assigned devices.

    Raises:
        InputError: the graph is too large for a file.
        OSError: the folder or file cannot be written.
    """
    placed = without_large_constants(graph_def)
    for node in placed.node:
        op = ops.get(node.name)
        node.device = str(op.assigned) if op and op.assigned else ""
    now = time.time()
    try:
        graph = event_pb2.Event(wall_time=now, graph_def=placed.SerializeToString())
        records = [event_pb2.Event(wall_time=now, file_version=_VERSION), graph]
        texts = [record.SerializeToString() for record in records]
    except ValueError as reason:
        raise InputError(program, f"its graph does not fit into an event file: {reason}") from None
    folder.mkdir(parents=True, exist_ok=True)
    earlier = list(folder.glob(f"events.out.tfevents.*{_OURS}"))
    file = folder / f"events.out.tfevents.{int(now)}{_OURS}"
    beside = folder / f".placement-checks.{secrets.token_hex(8)}"
    beside.touch(exist_ok=False)
    try:
        with tf.io.TFRecordWriter(os.fspath(beside)) as writer:
            for text in texts:
                writer.write(text)
        beside.replace(file)
    except tf.errors.OpError as failed:  # such as a full disk
        beside.unlink(missing_ok=True)
        raise OSError(None, failed.message) from None
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    for old in earlier:
        if old != file:
            old.unlink(missing_ok=True)
    return file
