"""Compares what two programs computed, and says which mistake explains a difference."""

from __future__ import annotations

from placement_checks.core.measurement import Course, Measurement, Trial

__all__ = ["Course", "Measurement", "Trial"]
