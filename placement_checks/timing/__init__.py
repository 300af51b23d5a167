"""What the steps of a program took, and when each device computed. Needs no TensorFlow."""

from __future__ import annotations

from placement_checks.timing.loops import Timing
from placement_checks.timing.timeline import Timeline
from placement_checks.timing.trace import Trace

__all__ = ["Timeline", "Timing", "Trace"]
