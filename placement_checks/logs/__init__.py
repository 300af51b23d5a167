"""Placement logs: every form TensorFlow has printed since 0.5, from wherever it was printed.

Needs no TensorFlow.
"""

from placement_checks.logs.forms import Record
from placement_checks.logs.log import Log
from placement_checks.logs.reading import processors, read_logs
from placement_checks.logs.sources import STDIN, Source
from placement_checks.logs.writing import text_of

__all__ = ["STDIN", "Log", "Record", "Source", "processors", "read_logs", "text_of"]
