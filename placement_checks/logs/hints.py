"""Hints in lines that are not records: devices of the machine, reasons for missing records."""

from __future__ import annotations

import contextlib
import re
from collections import Counter

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError
from placement_checks.logs.record_formats import device_of

_SEVERITY = re.compile(rb"(?:^|[^\w])([IWEF])(?:\d{4} [\d:.]+ +\d+)? \S{1,999}\.cc:\d+\] ")
_INFO = re.compile(rb"\S{1,999}\.cc:\d+\] ")  # an absl prefix without its severity and time
# Device mapping:
# /job:localhost/replica:0/task:0/device:GPU:0 -> device: 0, name: Tesla K40c, pci bus id: …
_MAPPED = re.compile(rb"(/job:\w+/replica:\d+/task:\d+/(?:device:)?[A-Za-z_]\w*:\d+) -> device: ")
# Created TensorFlow device (/job:localhost/replica:0/task:0/device:GPU:0 with 11439 MB memory)
# Created device /job:localhost/replica:0/task:0/device:GPU:0 with 11439 MB memory
_CREATED = re.compile(rb"device \(?(/[\w/:]+:\d+)(?: with \d|\) -> \()")


class Hints:
    """Collects the devices that a log lists, and counts lines that explain missing records."""

    def __init__(self) -> None:
        self.devices: set[Device] = set()  # the devices that the log lists
        self._kinds: Counter[str] = Counter()

    def look(self, line: bytes, times: int) -> None:
        """Look at a line that is not a record and occurs ``times`` times."""
        if line.strip():
            self._kinds["text"] += times
        if b" -> " in line:
            for match in (*_MAPPED.finditer(line), *_CREATED.finditer(line)):
                with contextlib.suppress(InputError):  # a torn name
                    device = Device.parse(device_of(match[1]) or match[1].decode())
                    self.devices.add(device.over(LOCALHOST))
        if b"Device mapping:" in line:
            self._kinds["mapping"] += times
        if b"] " not in line:
            return
        if severity := _SEVERITY.search(line):
            self._kinds[severity[1].decode()] += times
        elif _INFO.match(line):
            self._kinds["I"] += times

    def merge(self, other: Hints) -> None:
        """Add the hints of another log of the run."""
        self.devices |= other.devices
        self._kinds.update(other._kinds)

    @property
    def has_text(self) -> bool:
        """Whether any line was more than white space."""
        return self._kinds["text"] > 0

    def reason(self, torn: int = 0) -> str:
        """The likely reason why a log has no whole records, but ``torn`` torn records."""
        kinds = self._kinds
        if torn:
            return (
                f"every record in it is torn ({torn} in all): run the process with "
                "PYTHONUNBUFFERED=1, and copy whole lines"
            )
        if not kinds["text"]:
            return (
                "the log is empty: TensorFlow prints placements to the process's own stdout and "
                "stderr (python train.py > log 2>&1), which no notebook cell shows"
            )
        if kinds["mapping"]:
            return (
                "device placement was logged, but nothing was placed: no session ran, or this "
                "file has only one of stdout and stderr"
            )
        if kinds["I"]:
            return (
                "TensorFlow logged records, but no placements: log_device_placement is off, or "
                "was switched on after the session or the first op (set it before: "
                "ConfigProto(log_device_placement=True), tf.debugging.set_log_device_placement)"
            )
        if kinds["W"] or kinds["E"]:
            return (
                "only warnings and errors are logged: TF_CPP_MIN_LOG_LEVEL hides the placements "
                "of eager ops and the copy on stderr; set it to 0 before the start, or log "
                "stdout too"
            )
        return (
            "nothing in it comes from TensorFlow's runtime: is it the right stream (stdout and "
            "stderr of the process, python train.py > log 2>&1), and was log_device_placement on?"
        )
