"""Environment variables that give each simulated device one core.

TensorFlow reads `POOL` when the first session opens, and `ONEDNN` when it is imported.
"""

from __future__ import annotations

import os
import sys

# Without this variable, the first session of a process fixes the threads of an op for all sessions
# (core/common_runtime/local_device.cc).
POOL = "TF_OVERRIDE_GLOBAL_THREADPOOL"
# oneDNN kernels halve the time of some ops. Without this variable, only some processors use them.
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


def set_thread_pools() -> None:
    """Let every session choose the threads of its ops, and enable oneDNN unless the user set it.

    If TensorFlow is imported already, `ONEDNN` would have no effect, and is not set.
    """
    os.environ[POOL] = "1"
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(ONEDNN, "1")
