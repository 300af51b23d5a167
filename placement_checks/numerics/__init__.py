"""Compares the numbers of two programs, and diagnoses the mistake behind a difference."""

from __future__ import annotations
