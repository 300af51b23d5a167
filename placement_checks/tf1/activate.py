"""Runs code of TensorFlow 1 on TensorFlow 2.

For programs that say ``import tensorflow`` and mean version 1: ``--v1``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from placement_checks.tf.process_state import Behaviour
from placement_checks.tf1.import_hook import importing
from placement_checks.tf1.lazy_modules import Used
from placement_checks.tf1.renamed import moved_names, of_keras_2, old_names
from placement_checks.tf1.stand_in import StandIn


@contextlib.contextmanager
def as_tensorflow_1() -> Iterator[Used]:
    """In this block, code that says ``import tensorflow as tf`` gets version 1.

    That is `tf.compat.v1` with TensorFlow 2's behaviour off, with `tf.contrib`, and with what
    numpy, Python and scipy had in its time. Code of this package gets TensorFlow as it is
    installed. Afterwards all is as before; what the program defined must run in the block too.
    """
    import tensorflow as tf

    used = Used()
    before = Behaviour.now()
    with contextlib.ExitStack() as stack:
        stack.callback(before.restore)
        stack.enter_context(old_names())
        stack.enter_context(moved_names(tf.compat.v1))
        stack.enter_context(of_keras_2(tf.compat.v1))
        stack.enter_context(importing(StandIn(tf, used), tf))
        with _unlogged():
            _OFF.restore()
        yield used


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Without TensorFlow's warning that references to variables are an old thing."""
    logger = logging.getLogger("tensorflow")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


_OFF = Behaviour(
    v2_behavior=False,
    eager_execution=False,
    v2_tensorshape=False,
    resource_variables=False,
    tensor_equality=False,
    control_flow_v2=False,
)
