"""Placement logs: every form TensorFlow has printed since 0.5, from wherever it was printed.

Needs no TensorFlow.
"""

from placement_checks.logs.log import Log
from placement_checks.logs.reading import processors, read_logs
from placement_checks.logs.record_formats import Record, text_of
from placement_checks.logs.sources import STDIN, Source

__all__ = ["STDIN", "Log", "Record", "Source", "processors", "read_logs", "text_of"]
