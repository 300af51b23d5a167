"""Load TensorFlow without its log messages, and explain a missing installation."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys

from placement_checks.core.errors import InputError
from placement_checks.util.progress import step
from placement_checks.util.resources import freeze_loaded
from placement_checks.util.streams import quiet_stderr

INSTALL = (
    "pip install 'placement_checks[tensorflow]', or the build of TensorFlow that you use, such as "
    "a nightly"
)


def check_installed() -> None:
    """Check that TensorFlow is installed, without loading it.

    Raises:
        InputError: TensorFlow is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError(
            "tensorflow", "is not installed, and this needs it", INSTALL, is_predicate=True
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

    They concern the author of the program, who sees them when running it.
    """
    logging.getLogger("tensorflow").addFilter(_is_no_deprecation)


def _is_no_deprecation(record: logging.LogRecord) -> bool:
    return "Instructions for updating:" not in str(record.msg)
