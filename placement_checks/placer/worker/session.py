"""TensorFlow's placer on the devices of this computer. Runs in the placer process only.

The first run of a local session places the whole graph, whichever op it fetches. So the session
runs a single ``NoOp``, and no op of the user's graph. The placer's log has the device of each
node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from placement_checks.placer.worker.protocol import Failed, GraphRefused, Isolation
from placement_checks.util.streams import redirected, unnamed_file

_PROBE = "placement_checks_probe"
# Not errors of the placer: a GPU failed to start, or its memory is in use.
_NO_ANSWER = (
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
)


class LocalSession:
    """Places graphs with sessions of this process."""

    isolation: Isolation = "no-port"

    @contextlib.contextmanager
    def place(
        self, graph: bytes, _types: list[str], tasks: list[Any], soft: bool, _limit: float
    ) -> Iterator[bytes]:
        """Yield the placer's log for a graph; its arguments are described in `GpuLessServer`.

        Raises:
            GraphRefused: the placer's own error, or this computer has fewer devices than
                ``tasks``.
            Failed: no session could be run.
        """
        ((_, _, devices),) = tasks
        counts = dict(devices)
        present = len(tf.config.list_physical_devices("GPU"))
        if present < counts.get("GPU", 0):
            raise GraphRefused(f"TensorFlow finds {present} GPUs here, not {counts['GPU']}")
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=soft, log_device_placement=True, device_count=counts
        )
        config.gpu_options.allow_growth = True
        with tf.Graph().as_default() as live:
            tf.import_graph_def(tf.compat.v1.GraphDef.FromString(graph), name="")
            probe = tf.no_op(name=_PROBE)
        with unnamed_file() as log:
            try:
                with (
                    redirected(1, log),
                    tf.compat.v1.Session(graph=live, config=config) as session,
                ):
                    session.run(probe)
            except _NO_ANSWER as error:
                raise Failed(f"no session could be run: {error.message}") from None
            except tf.errors.OpError as error:
                raise GraphRefused(error.message) from None
            log.seek(0)
            yield log.read()
