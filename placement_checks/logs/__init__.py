"""Read placement logs in every form that TensorFlow has printed since 0.5.

This package works without TensorFlow.
"""

from placement_checks.logs.log import Log
from placement_checks.logs.reading import read_logs
from placement_checks.logs.record_formats import Record, text_of
from placement_checks.logs.sources import STDIN, Source

__all__ = ["STDIN", "Log", "Record", "Source", "read_logs", "text_of"]
