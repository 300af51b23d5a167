"""Write a graph with assigned devices for TensorBoard.

TensorFlow's own event files contain the requested devices. When TensorBoard colors by device, it
shows ops without a requested device in gray (tensorflow/tensorboard#640).
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

_SUFFIX = ".placement_checks"  # ends the names of files that this module writes
_VERSION = "brain.Event:2"  # the first record of every event file


def write_event_file(folder: Path, program: str, graph_def: Any, ops: Mapping[str, Op]) -> Path:
    """Write an event file, and remove the event file of an earlier call from the directory.

    TensorBoard shows only the last graph of a directory.

    Args:
        folder: the directory, which is created if necessary.
        program: the program's name for error messages.
        graph_def: the graph, which is not changed; large constants are written without values.
        ops: the ops with their assigned devices, by name.

    Raises:
        InputError: the graph is too large for a file.
        OSError: the directory or file cannot be written.
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
    earlier = list(folder.glob(f"events.out.tfevents.*{_SUFFIX}"))
    file = folder / f"events.out.tfevents.{int(now)}{_SUFFIX}"
    temporary = folder / f".placement-checks.{secrets.token_hex(8)}"
    temporary.touch(exist_ok=False)
    try:
        with tf.io.TFRecordWriter(os.fspath(temporary)) as writer:
            for text in texts:
                writer.write(text)
        temporary.replace(file)
    except tf.errors.OpError as failed:  # such as a full disk
        temporary.unlink(missing_ok=True)
        raise OSError(None, failed.message) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for old in earlier:
        if old != file:
            old.unlink(missing_ok=True)
    return file
