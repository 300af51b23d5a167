"""The number of random files in a test of a reader."""

from __future__ import annotations

import os


def examples(number: int) -> int:
    """``number``, or a multiple of it each night.

    The environment variable PLACEMENT_CHECKS_EXAMPLES is the factor.
    """
    return number * int(os.environ.get("PLACEMENT_CHECKS_EXAMPLES", "1"))
