"""Runs programs on the GPUs of this machine, in child processes.

A fault of a driver, such as a crash or a hang, ends only a child process. The fault is the result
of the program that was running, and the next program runs in a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placement_checks.placer.worker import protocol
from placement_checks.util.child import Child, Ended

_WORKER = f"{__package__}.worker"
_LIMIT = 300.0  # seconds of a request; the first start of CUDA may compile kernels


@dataclass(frozen=True)
class Observed:
    """A program on this machine.

    Attributes:
        placed: by node, the type and the device that TensorFlow's placer logged. Nodes that were
            placed on several devices are left out.
        executed: by node, the device in the graphs that a session executed, after all rewrites;
            empty for eager programs.
        facts: further facts that the program returned.
        error: the error that ended the program, or ``""``.
    """

    placed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    executed: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class Worker(contextlib.AbstractContextManager["Worker"]):
    """A child process that runs programs, for use in a ``with`` statement.

    If the process ends, the next request starts a new process.

    Args:
        simulated: whether CPU devices replace the GPUs: ``CPU:i+1`` for ``GPU:i``.
        environment: additions to the environment of this process.
    """

    def __init__(
        self, *, simulated: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        self._simulated = simulated
        self._environment = {
            "PYTHONPATH": os.pathsep.join(sys.path),  # this package is not installed
            # At a higher log level, TensorFlow does not log the devices of eager ops.
            "TF_CPP_MIN_LOG_LEVEL": "0",
            **(environment or {}),
        }
        self._child: Child | None = None

    def run(self, name: str) -> Observed:
        """Run a program of `programs.PROGRAMS`."""
        try:
            answer = self._ask(name=name, simulated=self._simulated)
        except Ended as ended:
            return Observed(error=f"its process {ended.how}")
        return Observed(**answer)

    def _ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and receive the answer.

        Raises:
            Ended: the process ended, or exceeded the time limit.
        """
        if self._child is None:
            self._child = Child(_WORKER, environment=self._environment)
        try:
            with self._child.time_limit(_LIMIT):
                protocol.write(self._child.requests, request)
                _, (answer,) = protocol.read(self._child.replies)
        except Ended:
            self.end()
            raise
        found: dict[str, Any] = json.loads(answer)
        return found

    def end(self) -> None:
        """End the process, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def __exit__(self, *_: object) -> None:
        self.end()
