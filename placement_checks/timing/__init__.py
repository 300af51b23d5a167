"""What the steps of a program took, and when each device computed. Needs no TensorFlow."""

from __future__ import annotations
