"""Find torn records, and count torn records without a whole copy.

TensorFlow prints each record of a graph on stderr and on stdout. A line of stderr is written at
once, so its record is whole, wherever on a line it begins. In a file or pipe, stdout arrives in
blocks of 4096 bytes, which end anywhere. If lines of stderr come between two blocks, a record of
stdout is torn into a head and a tail. The tail is on a line of its own further down::

    tower_1/logits: (MatMul): /job:localhost/repli2018-10-21 18:30:00.140665: I tensorflow/…
    ca:0/task:0/device:GPU:1

Torn records are not joined. A torn record is lost if stderr has no copy of it: stderr may be in a
file that was not read, or `TF_CPP_MIN_LOG_LEVEL` hides it. Programs that wrap or cut lines tear
records of both streams.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from placement_checks.core import limits
from placement_checks.logs.copies import Copies
from placement_checks.logs.record_formats import (
    DEVICE,
    NODE,
    OP,
    Reading,
    Record,
    read,
    read_common,
)

_LOG_PREFIX = re.compile(
    rb"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: |I\d{4} \d\d:\d\d:[\d.]+ +\d+ )?"
    rb"(?:[IWEF] |[WEF]\d{4} [\d:.]+ +\d+ |(?<= ))\S{1,999}:\d+\] "
)
# node, node:, node: (Op, node: (Op): /job:local…, node: /job:local…
_HEAD = re.compile(
    rb"[\w.][\w.>/-]*(?::(?: (?:\((?:"
    + OP
    + rb"+(?:\)(?::(?: (?:/[\w:/]*)?)?)?)?)?|/[\w:/]*)?)?)?"
)
_NO_HEAD = re.compile(rb"[\d.]+: ?|.*\.\.\.")  # a line number of grep -n, a time; Loading...
_WORD = re.compile(rb"[\w.>/-]+")
_NAME = re.compile(rb"[\w.>/-]+:? ?")
_GLUED = re.compile(rb"[\w.][\w.>/-]*: \(" + OP + rb"+\): " + DEVICE + rb"(?=\.?[A-Za-z_])")
_BEGUN = re.compile(rb"[\w.>/-]: \(" + OP + rb"+\)(?:: )?/(?=job:|jo?b?$|$)")
# Mul): /job:localhost/…, : (MatMul): /job:localhost/…, b:localhost/…
_TAIL = re.compile(
    rb"(?!/job:)(?:(?:(?::? ?\()?"
    + OP
    + rb"*\))?(?:: ?| )?/job|job|ob|b|):\w+/replica:\d+/task:\d+/(?:device:)?\w+:\d+"
)
_LONGEST = 1000  # bytes of a name or head


def head_of(line: bytes) -> bytes:
    """The head of a record that may end on another line; ``b""`` if the line has no head.

    A head begins the line. It ends at a log prefix, or after the device if only the newline is
    missing.
    """
    prefix = _LOG_PREFIX.search(line) if b"] " in line else None
    if prefix is None:
        glued = _GLUED.match(line)
        return glued[0] if glued else b""
    head = line[: prefix.start()]
    if len(head) > _LONGEST or not _HEAD.fullmatch(head) or _NO_HEAD.fullmatch(head):
        return b""
    return head


def is_cut(line: bytes) -> bool:
    """Whether the last line of a log ends in the middle of a record."""
    readings = read(line)
    if b": (" in line or b": /job:" in line:
        *_, text = _LOG_PREFIX.split(line)
        is_head = _HEAD.fullmatch(text) is not None and not complete_record(text)
        return is_head or bool(_unfinished_records(line, readings))
    return b"Executing op " in line and not readings


def complete_record(text: bytes) -> Record | None:
    """The record in ``text``, if it is whole and ends with the device; else None."""
    if not text[-1:].isdigit() or len(text) > _LONGEST:
        return None
    return next((reading.record for reading in read(text) if reading.record.device), None)


class Torn:
    """Collects torn records."""

    def __init__(self) -> None:
        self.waiting = b""  # the last head if its tail was not found so far, else `b""`
        self._beginnings: Counter[bytes] = Counter()  # of records without an end
        self._tails: Counter[bytes] = Counter()  # without a head
        self._last_words: list[bytes] = []  # possible beginnings at the ends of logs
        # The head, the record of head and tail, and the wrong record that was read instead.
        self._pairs: Counter[tuple[bytes, Record, Record | None]] = Counter()

    def look(self, line: bytes, readings: Sequence[Reading], times: int) -> bool:
        """Collect the torn records of a line that occurs ``times`` times; return if it has any."""
        unfinished = _unfinished_records(line, readings)
        for beginning in unfinished:
            _count(self._beginnings, beginning, times)
        is_tail = not readings and len(line) <= _LONGEST and _TAIL.fullmatch(line) is not None
        if is_tail:
            _count(self._tails, line, times)
        return is_tail or bool(unfinished)

    def follow(self, lines: Sequence[bytes], heads: Mapping[bytes, bytes]) -> None:
        """Find the tail of each head, and lines that were wrapped at a blank.

        The tail of a record that is torn within its name looks like a record. So does the head of
        a record that is torn within the index of its device.

        Args:
            lines: the lines of stdout in a block, and lines of stderr that begin with a head.
            heads: the head of each line that begins with a head.
        """
        before = b""
        for line in lines:
            if self.waiting:
                self._continue(line)
            elif line[:1] in (b"(", b"/") and (record := read_common(before + b" " + line)):
                self._pair(before, line, record, None)
            before = line if len(line) <= _LONGEST else b""
            if line in heads:
                self._give_up()
                self.waiting = heads[line]

    def _continue(self, line: bytes) -> None:
        head, whole = self.waiting, complete_record(self.waiting)
        record = read_common(head + line) if line[-1:].isdigit() else None
        if record:
            self._pair(head, line, record, whole or complete_record(line))
        if record or whole:  # the newline of a whole record was late
            self.waiting = b""

    def _pair(self, head: bytes, tail: bytes, record: Record, part: Record | None) -> None:
        if _TAIL.fullmatch(tail):
            _count(self._tails, tail, -1)  # `look` counted it
        if (head, record, part) in self._pairs or len(self._pairs) < limits.LOG_TORN.most:
            self._pairs[head, record, part] += 1
        else:
            _count(self._beginnings, head, 1)

    def _give_up(self) -> None:
        """Collect the waiting head without its tail, unless it may be another word."""
        head, self.waiting = self.waiting, b""
        if head and not _NAME.fullmatch(head) and not complete_record(head):
            _count(self._beginnings, head, 1)

    def _end(self) -> None:
        """Collect the head that waits at the end of a log."""
        if _WORD.fullmatch(self.waiting):
            self._last_words.append(self.waiting)
        self._give_up()

    def merge(self, other: Torn) -> None:
        """Add the torn records of another log of the run."""
        other._end()
        self._last_words += other._last_words
        self._beginnings.update(other._beginnings)
        self._tails.update(other._tails)
        self._pairs.update(other._pairs)

    def settle(self, copies: Copies) -> tuple[Counter[bytes], int]:
        """Correct the copies on stdout that were misread, and find the torn records with a copy.

        Returns:
            The beginnings or ends of the torn records that are lost, with their numbers; the
            number of torn records that have a copy on stderr.
        """
        self._end()
        lost: Counter[bytes] = Counter()
        for (head, record, part), times in self._pairs.items():
            if part in copies.logged and copies.plain[record] >= copies.logged[record]:
                continue  # the head is another word
            if part:
                copies.plain[part] -= times
            if record in copies.logged:
                copies.plain[record] += times
            elif not copies.plain[record]:
                lost[head] += times
        if copies.without_logged():
            self._beginnings.update(self._last_words)
        begun = copies.begun_by(self._beginnings)
        lost += self._beginnings - begun
        copies.correct_names()
        if not copies.logged:
            return lost + self._tails, 0
        tails = self._tails.total()
        if tails:
            tails = min(tails, copies.lacking_plain().total() - begun.total())
        return lost, begun.total() + tails


def _unfinished_records(line: bytes, readings: Sequence[Reading]) -> list[bytes]:
    """The beginnings, ``node: (Op)``, of records that begin on a line and do not end on it."""
    begun = list(_BEGUN.finditer(line)) if b": (" in line else []
    whole = [
        reading for reading in readings if None not in (reading.record.node, reading.record.op)
    ]
    lacking = len(begun) - len(whole)
    if lacking <= 0:
        return []
    left = Counter(_beginning(line, match) for match in begun) - Counter(
        b"] " * reading.logged + f"{reading.record.node}: ({reading.record.op})".encode()
        for reading in whole
    )
    return list(left.elements())[:lacking]


def _beginning(line: bytes, match: re.Match[bytes]) -> bytes:
    """The beginning of a record. On stderr it includes the end of the log prefix, ``] ``."""
    before = line[max(0, match.start() - _LONGEST) : match.start() + 1]
    start = match.start() + 1 - len(before) + len(before.rstrip(NODE))
    if re.match(rb"\d\] ", line[max(0, start - 3) : start]):
        start -= 2
    return line[start : line.index(b")", match.start()) + 1]


def _count(texts: Counter[bytes], text: bytes, times: int) -> None:
    text = text[:_LONGEST]
    if text in texts or len(texts) < limits.LOG_TORN.most:
        texts[text] += times
    else:
        texts[b""] += times
