"""The server of which the processes that watch programs are forked, each with TensorFlow loaded.

Run as ``python -m placement_checks.loading.watch.forking DESCRIPTOR PARENT`` it is that server.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from placement_checks.loading.start import import_tensorflow
from placement_checks.loading.watch.answers import DRIVER, VISIBLE_GPUS
from placement_checks.util.child import environment_of_ours
from placement_checks.util.fork_server import ForkServer
from placement_checks.util.forks import serve

# What neither TensorFlow nor what it loads reads while it is imported; pytest's is another in each
# test.
_READ_LATER = (VISIBLE_GPUS, "TMPDIR", "TF_CONFIG", "PYTEST_CURRENT_TEST")


class _Kept(NamedTuple):
    """A server, and the variables with which it has loaded TensorFlow."""

    server: ForkServer
    read: Mapping[str, str]


_kept: _Kept | None = None


def fork_server(environment: Mapping[str, str]) -> ForkServer | None:
    """The server of this process for children with these variables, started where there is none.

    None where there may be GPUs: what their driver keeps of a process does not outlive a fork.
    """
    if DRIVER.exists():
        return None
    read = _read(environment)
    if _kept is None or not _kept.server.is_own or _kept.read != read:
        _keep(ForkServer.of_module(__spec__.name, environment), read)
    assert _kept is not None
    return _kept.server


def fork_this_process(let_go: Callable[[], object]) -> None:
    """Let a fork of this process be the server, which has TensorFlow loaded and nothing run.

    Args:
        let_go: what the fork does first, to close what is this process's alone.
    """
    if DRIVER.exists():
        return
    server = ForkServer.of_this_process(let_go)
    if server is not None:
        _keep(server, _read(environment_of_ours({})))


def _keep(server: ForkServer, read: Mapping[str, str]) -> None:
    global _kept
    if _kept is not None:
        _kept.server.end()
    else:
        atexit.register(_end)
    _kept = _Kept(server, read)


def _end() -> None:
    if _kept is not None:
        _kept.server.end()


def _read(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in environment.items() if name not in _READ_LATER}


def main() -> None:
    """Load TensorFlow, and fork."""
    import_tensorflow()
    serve(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
