"""How TensorFlow is told, before it starts, to leave a core to each simulated device.

TensorFlow reads the one with its first session, the other when it is loaded.
"""

from __future__ import annotations

import os
import sys

# Else the first session of the process settles how many threads the ops of all sessions have
# (core/common_runtime/local_device.cc).
POOL = "TF_OVERRIDE_GLOBAL_THREADPOOL"
# Else the kind of processor decides whether kernels of oneDNN are used: they halve some times.
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


def set_thread_pools() -> None:
    """Let every session size the threads of its ops, and use oneDNN unless the user says not.

    Once TensorFlow is loaded it is too late for oneDNN, and its own choice is left.
    """
    os.environ[POOL] = "1"
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(ONEDNN, "1")
