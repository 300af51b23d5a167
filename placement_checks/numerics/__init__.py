"""Compare the numbers of two programs, and diagnose the mistake behind a difference."""

from __future__ import annotations
