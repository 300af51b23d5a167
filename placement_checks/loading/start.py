"""Loads TensorFlow itself, without its noise."""

from __future__ import annotations

import os

from placement_checks.core.errors import InputError
from placement_checks.util.progress import doing
from placement_checks.util.streams import quiet_stderr


def import_tensorflow() -> None:
    """Load TensorFlow.

    Raises:
        InputError: it is not installed, or does not load.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with doing("importing TensorFlow"), quiet_stderr():
            import tensorflow  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(
            "tensorflow", f"cannot be imported: {error}", "pip install 'tensorflow>=2.15'"
        ) from None
    except Exception as error:  # whatever stands in its way, such as a TMPDIR that is read-only
        raise InputError(
            "tensorflow",
            f"cannot be imported: {type(error).__name__}: {error}",
            "see what python -c 'import tensorflow' says",
        ) from None
