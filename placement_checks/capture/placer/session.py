"""TensorFlow's placer on the devices of this machine. Runs in the placer process only.

A local session places the whole graph when it is first run, whatever is run. One op that does
nothing is run, and the placer's own log tells where each node went: nothing of the user's graph
runs. TensorFlow prints that log to file descriptor 1, which is this process's own.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from placement_checks.capture.placer.refusal import Refused

_RECORD = re.compile(r"^(?P<node>[^\s:]+): \([^()\s]+\): (?P<device>/job:\S+)$", re.MULTILINE)
_PROBE = "placement_checks_probe"


class Session:
    """Places graphs in sessions of this process."""

    def place(
        self, graph: bytes, _targets: list[str], tasks: list[Any], soft: bool, _limit: float
    ) -> Iterator[tuple[str, str]]:
        """Every node that the placer placed, with its device; the arguments are `Phantom`'s.

        Raises:
            Refused: the placer's own error, or fewer devices here than ``tasks`` asks for.
        """
        ((_, _, devices),) = tasks
        wanted = dict(devices)
        present = len(tf.config.list_physical_devices("GPU"))
        if present < wanted.get("GPU", 0):
            raise Refused(f"TensorFlow finds {present} GPUs here, not {wanted['GPU']}")
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=soft, log_device_placement=True, device_count=wanted
        )
        config.gpu_options.allow_growth = True
        with tf.Graph().as_default() as live:
            tf.import_graph_def(tf.compat.v1.GraphDef.FromString(graph), name="")
            probe = tf.no_op(name=_PROBE)
        with tempfile.TemporaryFile() as log:
            with (
                _stdout_to(log.fileno()),
                tf.compat.v1.Session(graph=live, config=config) as session,
            ):
                try:
                    session.run(probe)
                except tf.errors.OpError as error:
                    raise Refused(error.message) from None
            log.seek(0)
            text = log.read().decode(errors="replace")
        for record in _RECORD.finditer(text):
            yield record["node"], record["device"]


class _stdout_to:  # noqa: N801  (reads as a statement)
    """Sends what C and C++ print to file descriptor 1 to another one."""

    def __init__(self, target: int) -> None:
        self._target = target

    def __enter__(self) -> None:
        self._kept = os.dup(1)
        os.dup2(self._target, 1)

    def __exit__(self, *exc_info: object) -> None:
        ctypes.CDLL(None).fflush(None)
        os.dup2(self._kept, 1)
        os.close(self._kept)
