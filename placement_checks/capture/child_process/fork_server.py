"""Forks child processes from a server that has imported TensorFlow, to save the import.

Run as ``python -m placement_checks.capture.child_process.fork_server DESCRIPTOR PARENT``, this
module is the server.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple

from placement_checks.capture.child_process.request import DRIVER
from placement_checks.core.devices import VISIBLE_GPUS
from placement_checks.core.ranks import Rank
from placement_checks.tf.startup import import_tensorflow
from placement_checks.util.child import child_environment
from placement_checks.util.fork_server import ForkServer
from placement_checks.util.fork_worker import serve

# This module imports most other modules of the package. The server imports it for all forks.
_RUNNER = "placement_checks.capture.child_process.runner"
# Environment variables that TensorFlow and its dependencies do not read during their import. Their
# values may differ between a server and its children. PYTEST_CURRENT_TEST changes in each test.
_IGNORED = frozenset(
    (VISIBLE_GPUS, "TMPDIR", "TF_CONFIG", "PYTEST_CURRENT_TEST", *Rank(0, 1).environment)
)


class _Known(NamedTuple):
    """A fork server."""

    server: ForkServer  # the server
    variables: Mapping[str, str]  # its environment variables when it imported TensorFlow


class ForkServerCache:
    """The fork servers of this process, which are reused for later child processes.

    Programs of TensorFlow 1 and 2 need different environment variables, and may alternate.
    Therefore the last two servers remain. Older servers remain while they have children, because
    children would end with their server.
    """

    def __init__(self) -> None:
        self._known: list[_Known] = []  # the last one was used last

    def for_children(self, environment: Mapping[str, str]) -> ForkServer | None:
        """Return a server for children with these environment variables; starts one if needed.

        None if NVIDIA's driver is loaded, because the state of the driver does not survive a fork.
        """
        if DRIVER.exists():
            return None
        variables = _import_variables(environment)
        for known in self._known:
            if known.server.is_own and known.variables == variables:
                self._known.remove(known)
                self._known.append(known)
                return known.server
        server = ForkServer.from_module(__spec__.name, environment)
        self.keep(server, environment)
        return server

    def keep(self, server: ForkServer, environment: Mapping[str, str]) -> None:
        """Add a server that imported TensorFlow with these variables, and end servers."""
        if not self._known:
            atexit.register(self._end)
        last = self._known[-1:]
        for known in [*self._known]:
            is_needed = known in last or not known.server.is_idle
            if not (known.server.is_own and is_needed):
                known.server.end()
                self._known.remove(known)
        self._known.append(_Known(server, _import_variables(environment)))

    def _end(self) -> None:
        for known in self._known:
            known.server.end()


_cache = ForkServerCache()


def fork_server(environment: Mapping[str, str]) -> ForkServer | None:
    """Return the server for children with these variables; None if NVIDIA's driver is loaded."""
    return _cache.for_children(environment)


def fork_this_process(let_go: Callable[[], object]) -> None:
    """Make a fork of this process the server. TensorFlow must be imported, but not yet used.

    The fork first calls ``let_go``, which closes resources that only this process needs.
    """
    if DRIVER.exists():
        return
    server = ForkServer.from_this_process(let_go)
    if server is not None:
        _cache.keep(server, child_environment({}))


def _import_variables(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in environment.items() if name not in _IGNORED}


def main() -> None:
    """Import TensorFlow, and fork a child process for each request."""
    import_tensorflow()
    import_module(_RUNNER)  # imports TensorFlow itself, so it cannot be imported above
    serve(int(sys.argv[1]), int(sys.argv[2]), ends_orphans=True)


if __name__ == "__main__":
    main()
