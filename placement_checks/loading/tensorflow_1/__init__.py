"""For programs that say ``import tensorflow`` and mean version 1: ``--v1``."""

from __future__ import annotations

from placement_checks.loading.tensorflow_1.block import as_tensorflow_1
from placement_checks.loading.tensorflow_1.keras_2 import environment
from placement_checks.loading.tensorflow_1.used import Used

__all__ = ["Used", "as_tensorflow_1", "environment"]
