"""The child process: runs a program until its first training step, and sends what it built.

The parent runs ``python -m placement_checks.capture.child_process.child PARENT``. The child ends
when the process PARENT ends (`supervisor`). It sends its answer from inside the training step and
then exits at once: threads, exit handlers and ``finally`` blocks of the program do not run.
"""

from __future__ import annotations

import os
import pickle
import site
import sys
import tempfile
from pathlib import Path

from placement_checks.capture.child_process.request import (
    DRIVER,
    CaptureRequest,
    send_and_exit,
)
from placement_checks.capture.child_process.source_tree import enter_tree
from placement_checks.capture.child_process.supervisor import supervise
from placement_checks.core.cluster_spec import parameter_servers
from placement_checks.core.devices import VISIBLE_GPUS
from placement_checks.core.errors import as_error
from placement_checks.tf.startup import hide_deprecations, import_tensorflow
from placement_checks.util.streams import quiet_stderr

_PACKAGES = str(Path(__file__).resolve().parents[3])


def main() -> None:
    """Answer one request."""
    request: CaptureRequest = pickle.load(sys.stdin.buffer)
    channels = supervise(request.control)
    # Standard input is empty: a program that prompts the user reads the end of the file.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    _restore_module_path(request)
    try:
        if request.script.tree is not None:
            request = request._replace(script=enter_tree(request.script, request.script.tree))
        import_tensorflow()
        hide_deprecations()
        import numpy as np

        from placement_checks.capture.child_process.runner import CapturedRun
        from placement_checks.tf.simulated_devices import configure_logical_cpus

        tempfile.gettempdir()  # creates a test file, which is not a file of the program
        np.random.seed()  # forks of one server share the seed from its import
        _set_visible_gpus(request)
        if not request.script.settings.v1:  # before TensorFlow creates its devices
            configure_logical_cpus(request.gpus + 1 + parameter_servers())
        answer: object = CapturedRun(request, channels).run()
    except BaseException as fault:  # programs may raise other than Exception
        answer = as_error(request.script.target.name, fault)
    send_and_exit(answer, channels)


def _restore_module_path(request: CaptureRequest) -> None:
    """Set ``sys.path`` and PYTHONPATH to the values that ``python train.py`` would have.

    The child starts with the directory of this package first in ``sys.path``. If packages are
    installed in this directory, it moves to the end; otherwise it is removed.
    """
    user_path = [path for path in (request.python_path or "").split(os.pathsep) if path]
    others = [path for path in sys.path if path not in (_PACKAGES, *user_path)]
    is_installed = _PACKAGES in map(os.path.realpath, site.getsitepackages())
    added = [path for path in request.path if path not in (*user_path, *others)]
    sys.path[:] = [*user_path, *others, *added, *([_PACKAGES] if is_installed else [])]
    os.environ.pop("PYTHONPATH", None)
    if request.python_path is not None:
        os.environ["PYTHONPATH"] = request.python_path


def _set_visible_gpus(request: CaptureRequest) -> None:
    """Set ``CUDA_VISIBLE_DEVICES`` to the fake GPUs if the user has set it; otherwise delete it.

    The parent has set the variable to hide the GPUs of this machine. TensorFlow reads it only
    once, and must do so before the variable changes.
    """
    if DRIVER.exists():
        import tensorflow as tf

        with quiet_stderr():  # TensorFlow prints that no GPU is visible
            tf.config.list_physical_devices("GPU")
    del os.environ[VISIBLE_GPUS]
    if request.names_gpus:
        os.environ[VISIBLE_GPUS] = ",".join(map(str, range(request.gpus)))


if __name__ == "__main__":
    main()
