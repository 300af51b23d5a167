"""Environment variables that give each simulated device one core.

TensorFlow reads `POOL` when the first session opens, and `ONEDNN` when it is imported.
"""

from __future__ import annotations

import os
import sys

# Without it, the first session of a process fixes the number of threads of an op for all sessions
# (core/common_runtime/local_device.cc).
POOL = "TF_OVERRIDE_GLOBAL_THREADPOOL"
# Without it, oneDNN kernels are used on some processors only. They halve some times.
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


def set_thread_pools() -> None:
    """Let every session choose the threads of its ops, and enable oneDNN unless the user set it.

    After TensorFlow is imported, oneDNN is left as it is: the variable has no effect any more.
    """
    os.environ[POOL] = "1"
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(ONEDNN, "1")
