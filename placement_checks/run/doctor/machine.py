"""The GPUs of this machine, in a child process: a fault of a driver ends only this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from placement_checks.placer.worker import protocol
from placement_checks.util.child import Child

_WORKER = "placement_checks.run.doctor.worker"
_START_LIMIT = 300.0  # seconds; a first start of CUDA may compile kernels


class Gpu(NamedTuple):
    """A GPU that TensorFlow finds.

    Attributes:
        name: the model, such as ``NVIDIA A100``.
        capability: the compute capability, such as ``8.0``.
    """

    name: str
    capability: str

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability})"


class Worker:
    """A child process that uses the GPUs of this machine."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def ask(self, limit: float, **request: Any) -> dict[str, Any]:
        """Send a request and receive the answer.

        Raises:
            Ended: the process ended, or exceeded the limit in seconds.
        """
        with self._child.time_limit(limit):
            protocol.write(self._child.requests, request)
            answer, _ = protocol.read(self._child.replies)
        return answer


@contextlib.contextmanager
def worker() -> Iterator[Worker]:
    """Start a child process, which ends with the block."""
    # At a higher level, TensorFlow does not log the devices of eager ops.
    with Child(_WORKER, environment={"TF_CPP_MIN_LOG_LEVEL": "0"}) as child:
        yield Worker(child)


def found_gpus() -> list[Gpu]:
    """The GPUs that TensorFlow finds.

    Raises:
        Ended: the process that asked TensorFlow ended.
    """
    with worker() as asked:
        answer = asked.ask(_START_LIMIT, action="devices")
    return [Gpu(*gpu) for gpu in answer["gpus"]]
