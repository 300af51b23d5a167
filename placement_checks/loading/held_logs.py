"""Holds back what TensorFlow logs while it is not known whether that matters to the user."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import tensorflow as tf


class _Held(logging.Filter):
    """Keeps the records of a logger from it."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self._records.append(record)
        return False

    def log(self) -> None:
        """Log what was held back so far, and hold back nothing more."""
        logger = tf.get_logger()
        logger.removeFilter(self)
        while self._records:
            logger.handle(self._records.pop(0))


@contextlib.contextmanager
def logs_held(unless: type[BaseException]) -> Iterator[Callable[[], None]]:
    """Hold back what TensorFlow logs in this block until its end.

    Args:
        unless: the error with which the block ends if nothing of it is to be logged.

    Yields:
        What ends that earlier.
    """
    held = _Held()
    tf.get_logger().addFilter(held)
    try:
        yield held.log
    except unless:
        raise
    except BaseException:
        held.log()
        raise
    else:
        held.log()
    finally:
        tf.get_logger().removeFilter(held)
