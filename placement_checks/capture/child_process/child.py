"""Runs a program until its first training step, and answers with what it has built.

Run as ``python -m placement_checks.capture.child_process.child PARENT``. It ends when the process
PARENT is gone. The answer is written inside of the step, and the process ends
there: nothing that the program does at exit (threads, workers, ``finally``) is awaited.
"""

from __future__ import annotations

import os
import pickle
import site
import sys
import tempfile
from pathlib import Path

from placement_checks.capture.child_process.file_journal import put_back
from placement_checks.capture.child_process.request import (
    DRIVER,
    VISIBLE_GPUS,
    CaptureRequest,
    end_with,
)
from placement_checks.core.cluster_spec import parameter_servers
from placement_checks.core.errors import as_error
from placement_checks.tf.startup import hide_deprecations, import_tensorflow
from placement_checks.util.child import end_with_parent, reserve_stdout

_HOME = str(Path(__file__).resolve().parents[3])


def main() -> None:
    """Answer one request."""
    answers = reserve_stdout()
    asked: CaptureRequest = pickle.load(sys.stdin.buffer)
    end_with_parent(lambda: put_back(asked.journal))
    _close_stdin()
    _leave_our_path(asked)
    try:
        import_tensorflow()
        hide_deprecations()
        tempfile.gettempdir()  # tries the folder by a file, which is no file of the program's
        _draw_other_numbers()
        _show_gpus(asked)
        _stand_in_for_gpus(asked)
        from placement_checks.capture.child_process.runner import Watched

        answer: object = Watched(asked, answers).run()
    except BaseException as fault:  # user code may raise what is no Exception
        answer = as_error(asked.script.target, fault)
    end_with(answer, answers)


def _draw_other_numbers() -> None:
    """Seed anew what was seeded when it was imported, which may be in common with other forks."""
    import numpy as np

    np.random.seed()


def _show_gpus(asked: CaptureRequest) -> None:
    """Let ``CUDA_VISIBLE_DEVICES`` name as many GPUs as the program finds, if it was set.

    So far it hid those of this machine from TensorFlow, which reads it once.
    """
    if DRIVER.exists():
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")
    del os.environ[VISIBLE_GPUS]
    if asked.names_gpus:
        os.environ[VISIBLE_GPUS] = ",".join(map(str, range(asked.gpus)))


def _stand_in_for_gpus(asked: CaptureRequest) -> None:
    """Let logical CPUs stand in for GPUs, before TensorFlow makes its devices."""
    from placement_checks.tf.simulated_devices import configure_logical_cpus

    if not asked.script.v1:
        configure_logical_cpus(asked.gpus + 1 + parameter_servers())


def _close_stdin() -> None:
    """Let a question on the terminal meet the end of the input."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def _leave_our_path(asked: CaptureRequest) -> None:
    """Find modules where ``python train.py`` finds them, also in processes that it starts.

    This package came first so far; where it is installed, that is where other packages are too.
    """
    given = [folder for folder in (asked.python_path or "").split(os.pathsep) if folder]
    others = [folder for folder in sys.path if folder not in (_HOME, *given)]
    installed = [_HOME] if _HOME in map(os.path.realpath, site.getsitepackages()) else []
    added = [folder for folder in asked.path if folder not in (*given, *others)]
    sys.path[:] = [*given, *others, *added, *installed]
    os.environ.pop("PYTHONPATH", None)
    if asked.python_path is not None:
        os.environ["PYTHONPATH"] = asked.python_path


if __name__ == "__main__":
    main()
