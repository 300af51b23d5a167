"""The server of which processes are forked that need TensorFlow, each with it loaded.

Run as ``python -m placement_checks.capture.child_process.fork_server DESCRIPTOR PARENT``, it is
that server.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping

from placement_checks.capture.child_process.request import DRIVER, VISIBLE_GPUS
from placement_checks.tf.startup import import_tensorflow
from placement_checks.util.child import child_environment
from placement_checks.util.fork_server import ForkServer
from placement_checks.util.fork_worker import serve

# What neither TensorFlow nor what it loads reads while it is imported; pytest's is another in each
# test.
_READ_LATER = (VISIBLE_GPUS, "TMPDIR", "TF_CONFIG", "PYTEST_CURRENT_TEST")


class KeptServer:
    """A server of this process, kept for the next children."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._read: Mapping[str, str] = {}

    def for_children(self, environment: Mapping[str, str]) -> ForkServer | None:
        """The server for children with these variables, started where there is none.

        None where there may be GPUs: what their driver keeps of a process does not outlive a fork.
        """
        if DRIVER.exists():
            return None
        read = _read(environment)
        if self._server is None or not self._server.is_own or self._read != read:
            self.keep(ForkServer.from_module(__spec__.name, environment), environment)
        return self._server

    def keep(self, server: ForkServer, environment: Mapping[str, str]) -> None:
        """Keep this one, which has loaded TensorFlow with these variables, in place of another."""
        if self._server is not None:
            self._server.end()
        else:
            atexit.register(self._end)
        self._server, self._read = server, _read(environment)

    def _end(self) -> None:
        if self._server is not None:
            self._server.end()


_kept = KeptServer()


def fork_server(environment: Mapping[str, str]) -> ForkServer | None:
    """The server of this process for children that watch, as `KeptServer.for_children` has it."""
    return _kept.for_children(environment)


def fork_this_process(let_go: Callable[[], object]) -> None:
    """Let a fork of this process be the server, which has TensorFlow loaded and nothing run.

    Args:
        let_go: what the fork does first, to close what is this process's alone.
    """
    if DRIVER.exists():
        return
    server = ForkServer.from_this_process(let_go)
    if server is not None:
        _kept.keep(server, child_environment({}))


def _read(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in environment.items() if name not in _READ_LATER}


def main() -> None:
    """Load TensorFlow, and fork."""
    import_tensorflow()
    serve(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
