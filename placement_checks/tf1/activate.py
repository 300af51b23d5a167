"""Run code of TensorFlow 1 on TensorFlow 2, for ``--v1``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from placement_checks.tf.process_state import Behavior
from placement_checks.tf1.lazy_modules import UsedNames
from placement_checks.tf1.renamed import dropped_names, keras_2_modules, moved_names
from placement_checks.tf1.stand_in import StandIn, import_stand_in


@contextlib.contextmanager
def as_tensorflow_1() -> Iterator[UsedNames]:
    """Let ``import tensorflow as tf`` import version 1 in this block.

    Version 1 is `tf.compat.v1` with TensorFlow 2 behavior off and with `tf.contrib`. numpy, Python
    and scipy have their removed names again. This package itself still imports the installed
    TensorFlow. Leaving the block restores everything, so functions that the program defined must
    be called in the block.
    """
    import tensorflow as tf

    used = UsedNames()
    before = Behavior.current()
    with contextlib.ExitStack() as stack:
        stack.callback(before.restore)
        stack.enter_context(dropped_names())
        stack.enter_context(moved_names(tf.compat.v1))
        stack.enter_context(keras_2_modules())
        stack.enter_context(import_stand_in(StandIn(tf, used), tf))
        with _logging_disabled():
            _VERSION_1_BEHAVIOR.restore()
        yield used


@contextlib.contextmanager
def _logging_disabled() -> Iterator[None]:
    """Hide TensorFlow's deprecation warning for ref variables."""
    logger = logging.getLogger("tensorflow")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


_VERSION_1_BEHAVIOR = Behavior(
    v2_behavior=False,
    eager_execution=False,
    v2_tensorshape=False,
    resource_variables=False,
    tensor_equality=False,
    control_flow_v2=False,
)
