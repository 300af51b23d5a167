"""Loads TensorFlow itself, without its noise; says what to do where it is not installed."""

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
        InputError: it is not.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError("tensorflow", "is not installed, and this needs it", INSTALL)


def import_tensorflow() -> None:
    """Load TensorFlow, unless it is loaded.

    Raises:
        InputError: it is not installed, or does not load.
    """
    check_installed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.modules.get("tensorflow") is not None:
        return
    try:
        with step("importing TensorFlow"), quiet_stderr(), freeze_loaded():
            import tensorflow  # noqa: F401
    except Exception as error:  # whatever stands in its way, such as a TMPDIR that is read-only
        raise InputError(
            "tensorflow",
            f"cannot be imported: {type(error).__name__}: {error}",
            "see what python -c 'import tensorflow' says",
        ) from None


def without_deprecations() -> None:
    """Keep TensorFlow from logging that what a program uses is deprecated.

    Its author knows, and did not ask; each is three lines, between the report's own.
    """
    logging.getLogger("tensorflow").addFilter(_is_no_deprecation)


def _is_no_deprecation(record: logging.LogRecord) -> bool:
    return "Instructions for updating:" not in str(record.msg)
