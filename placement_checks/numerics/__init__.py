"""Compares what two programs computed, and says which mistake explains a difference."""

from __future__ import annotations
