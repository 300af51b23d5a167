"""Whether the time of a function grows with the size of its input, and not faster."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

_FACTOR = 4  # of the sizes
_LINEAR = 2.5  # times as much as linear time; quadratic time is four times as much


def check_linear(function: Callable[[int], object], size: int) -> None:
    """Check that an input of four times the size takes at most ten times the CPU time.

    Other processes make a measurement longer, not shorter. So the shortest of several measurements
    counts, and a failure is measured again.
    """
    ratio = 0.0
    for _ in range(3):
        small, large = _shortest(function, size, 5), _shortest(function, size * _FACTOR, 2)
        ratio = large / max(small, 1e-3)  # below, the clock and the constant part count
        if ratio <= _FACTOR * _LINEAR:
            return
    raise AssertionError(f"{_FACTOR} times the input takes {ratio:.1f} times the CPU time")


def _shortest(function: Callable[[int], object], size: int, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        function(size)
        seconds.append(time.process_time() - begin)
    return min(seconds)
