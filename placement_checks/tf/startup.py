"""Load TensorFlow without its log messages, and explain a missing installation."""

from __future__ import annotations

import importlib.util
import logging
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.util.progress import step
from placement_checks.util.resources import freeze_loaded
from placement_checks.util.streams import quiet_stderr

INSTALL = (
    "pip install 'placement_checks[tensorflow]', or the build of TensorFlow that you use, such as "
    "a nightly"
)

NO_GPU_KERNELS = (
    "is a build without GPU kernels, so its placer cannot place ops for a machine with GPUs"
)
INSTALL_GPU_KERNELS = "install the Linux x86-64 wheel of tensorflow, which is a CUDA build"
INSTALL_CUDA = "install the libraries of CUDA: pip install 'tensorflow[and-cuda]'"


def check_installed() -> None:
    """Check that TensorFlow is installed, without loading it.

    Raises:
        InputError: TensorFlow is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError(
            "tensorflow", "is required, but is not installed", INSTALL, is_predicate=True
        )


def build_info() -> Mapping[str, Any]:
    """The facts of the installed build, such as ``is_cuda_build``, without loading TensorFlow.

    The result is the same as from ``tf.sysconfig.get_build_info()``.

    Raises:
        InputError: TensorFlow is not installed, or the installation lacks the file of these facts.
    """
    check_installed()
    package = importlib.util.find_spec("tensorflow")
    assert package is not None
    (home, *_) = package.submodule_search_locations or [""]
    file = Path(home, "python", "platform", "build_info.py")
    try:
        names = runpy.run_path(str(file))
    except OSError:
        raise InputError(
            "tensorflow", "is only partly installed", "install it again", is_predicate=True
        ) from None
    return cast(Mapping[str, Any], names["build_info"])


def limit_of_installation() -> Missing | None:
    """Why the installed TensorFlow cannot place ops; None if it can. Does not load TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        return Missing(
            "tensorflow is not installed: only logs and baselines can be checked", INSTALL
        )
    try:
        has_gpu_kernels = build_info()["is_cuda_build"]
    except InputError as error:
        return Missing(error.fault, error.fix)
    return (
        None if has_gpu_kernels else Missing(f"tensorflow {NO_GPU_KERNELS}", INSTALL_GPU_KERNELS)
    )


def import_tensorflow() -> None:
    """Load TensorFlow, unless it is loaded already.

    Raises:
        InputError: TensorFlow is not installed, or its import fails.
    """
    check_installed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.modules.get("tensorflow") is not None:
        return
    try:
        with step("importing TensorFlow"), quiet_stderr(), freeze_loaded():
            import tensorflow  # noqa: F401
    except Exception as error:  # of any type; a read-only TMPDIR is one cause
        raise InputError(
            "tensorflow",
            f"cannot be imported: {type(error).__name__}: {error}",
            "run python -c 'import tensorflow' to see the whole error",
            is_predicate=True,
        ) from None


def hide_deprecations() -> None:
    """Hide TensorFlow's deprecation warnings, which would interrupt the report.

    The author of the program sees the warnings when running the program itself.
    """
    logging.getLogger("tensorflow").addFilter(_is_no_deprecation)


def _is_no_deprecation(record: logging.LogRecord) -> bool:
    return "Instructions for updating:" not in str(record.msg)
