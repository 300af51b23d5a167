"""Capture the placement log of this process while it runs.

TensorFlow prints the log from C++, not through `sys.stdout`. So file descriptors are redirected.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from placement_checks.core.machines import Machine
from placement_checks.core.placement import Placement
from placement_checks.logs.log import Log
from placement_checks.logs.reading import read_logs
from placement_checks.util.streams import flush, redirected, write_back

_NAME = "the caught log"


class CaughtLog:
    """The text that this process prints to file descriptors 1 and 2 in a ``with`` block::

        with placement_checks.catch_log() as caught:
            session.run(train_op)
        assert_variables_on_host(caught.placement())

    The text is passed on to its destination when the block ends, also after an exception. Blocks
    may be nested. Notebooks print eager ops through `sys.stdout`, which is not captured.
    """

    def __init__(self) -> None:
        self._log: Log | None = Log(_NAME, {}, 0, reason="nothing has been caught yet")

    def __repr__(self) -> str:
        return f"CaughtLog({self._log or 'its block is still running'})"

    def __enter__(self) -> CaughtLog:
        self._log = None
        self._open = contextlib.ExitStack()
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._files = {
            stream: self._open.enter_context((folder / name).open("w+b", buffering=0))
            for stream, name in ((1, "stdout"), (2, "stderr"))
        }
        self._caught = contextlib.ExitStack()
        for stream, file in self._files.items():
            self._caught.enter_context(redirected(stream, file.fileno()))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._caught.close()
        with self._open:
            for stream, file in self._files.items():
                write_back(file, stream)
            self._log = self._read()

    def log(self) -> Log:
        """The log that was printed so far."""
        if self._log is not None:
            return self._log
        flush()
        return self._read()

    def placement(self, machine: Machine | None = None) -> Placement:
        """The placement that was printed so far; see `Log.placement`.

        Raises:
            InputError: nothing was logged; the message names the likely reason.
        """
        return self.log().placement(machine)

    def _read(self) -> Log:
        log = read_logs([file.name for file in self._files.values()], packed=False)
        return replace(log, name=_NAME, reason=log.reason and _reason())


def catch_log() -> CaughtLog:
    """Capture the placements that TensorFlow prints; see `CaughtLog`."""
    return CaughtLog()


def _reason() -> str:
    hidden = ""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") not in ("", "0"):
        hidden = (
            "TF_CPP_MIN_LOG_LEVEL hides eager ops, set it to 0 before TensorFlow is imported; or "
        )
    return (
        f"{hidden}log_device_placement was off, or switched on too late: a session needs "
        "ConfigProto(log_device_placement=True) and logs its graph at the first run, which must "
        "be inside the block; tf.debugging.set_log_device_placement(True) counts only before the "
        "first op of the process, and is ignored later"
    )
