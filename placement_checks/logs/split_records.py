"""Records torn by block buffering, and how they are rejoined.

Into a file or a pipe, TensorFlow's copy on stdout comes in blocks of 4096 bytes that end anywhere,
and lines of stderr come between them. So a line of stderr may begin in the middle of a record,
and the rest of that record stands alone further down::

    tower_1/logits: (MatMul): /job:localhost/repli2018-10-21 18:30:00.140665: I tensorflow/…
    ca:0/task:0/device:GPU:1

Which line continues which is known by their order, as stdout is one stream. It counts as proved
if the record's other copy, on stderr, is the same. A beginning without a continuation stands for
the record that begins so and lacks its copy on stdout, if there is one. All others are counted as
torn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import compress

from placement_checks.logs.copies import Copies, correct_names, without_copy
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
_NO_HEAD = re.compile(rb"[\d.]+: ?|.*\.\.\.")  # of grep -n, a time; Loading...
_RAGGED = re.compile(rb"[\w.][\w.>/-]*: \(")
_GLUED = re.compile(rb"[\w.][\w.>/-]*: \(" + OP + rb"+\): " + DEVICE + rb"(?=\.?[A-Za-z_])")
_BEGUN = re.compile(rb"[\w.>/-]: \(" + OP + rb"+\)(?:: )?/(?=job:|jo?b?$|$)")
_TAIL = re.compile(OP + rb"{0,200}(?:\)(?:: )?)?[\w:/]{0,200}\d")
_LONGEST = 1000  # bytes of a name that are looked at
_MAX_DISTANCE = 20_000  # lines of stdout after which a head has no continuation
_MAX_TRIES = 50  # lines with which one is tried that may be no head
_MAX_MARKS = 1000


def cut(line: bytes) -> tuple[bytes, bytes]:
    """The torn record with which a line begins, ``b""`` if with none, and the rest of the line.

    It ends where a log prefix begins, or, if only its newline is missing, where it is whole.
    """
    prefix = _LOG_PREFIX.search(line) if b"] " in line else None
    if prefix is None:
        glued = _GLUED.match(line)
        end = glued.end() if glued else 0
        return line[:end], line[end:]
    head = line[: prefix.start()]
    if len(head) > _LONGEST or not _HEAD.fullmatch(head) or _NO_HEAD.fullmatch(head):
        return b"", line
    return head, line[prefix.start() :]


def may_be_torn(line: bytes) -> bool:
    """Whether a line begins like a record; where it was torn other text may follow."""
    return _RAGGED.match(line) is not None


def is_cut(line: bytes) -> bool:
    """Whether the last line of a log ends in the middle of a record."""
    readings = read(line)
    if b": (" in line or b": /job:" in line:
        *_, text = _LOG_PREFIX.split(line)
        is_head = _HEAD.fullmatch(text) is not None and not complete(text)
        return is_head or bool(unfinished(line, readings))
    return b"Executing op " in line and not readings


def unfinished(line: bytes, readings: list[Reading]) -> list[bytes]:
    """The beginnings, ``node: (Op)``, of the records that begin on a line and do not end on it."""
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
    """The beginning of a record; of a copy on stderr the end of its log prefix is part."""
    before = line[max(0, match.start() - _LONGEST) : match.start() + 1]
    start = match.start() + 1 - len(before) + len(before.rstrip(NODE))
    if line[:start].endswith(b"] "):
        start -= 2
    return line[start : line.index(b")", match.start()) + 1]


class Torn:
    """Pairs heads with the lines that go on with them.

    Attributes:
        waiting: the head whose continuation has not come yet.
    """

    def __init__(self) -> None:
        self.waiting = b""
        self._passed = 0
        self._far = 0
        self._pairs: Counter[tuple[bytes, bytes, frozenset[Record]]] = Counter()
        self._lost: Counter[bytes] = Counter()
        self._marks: Counter[bytes] = Counter()

    def look(self, lines: list[bytes], heads: Mapping[bytes, bytes]) -> None:
        """Go through a block's lines of stdout; ``heads`` has those that begin with a torn record.

        Lines of stderr are left out, but for those with a torn record before their log prefix.
        """
        begin = 0
        for here in compress(range(len(lines)), map(heads.__contains__, lines)):
            self._go_on(lines, begin, here)
            begin = here + 1
            head = heads[lines[here]]
            if not self.waiting or head != lines[here]:
                self._give_up()
                self.waiting = head
                self._passed = 0
                self._far = _MAX_DISTANCE if _HEAD.fullmatch(head) else _MAX_TRIES
        self._go_on(lines, begin, len(lines))

    def look_beyond(self, lines: list[bytes]) -> None:
        """Look for the continuation of what waits up to the next torn record."""
        ends = (at for at, line in enumerate(lines) if cut(line)[0])
        self._go_on(lines, 0, next(ends, len(lines)))

    def _go_on(self, lines: list[bytes], begin: int, end: int) -> None:
        """Look for the continuation of what waits among the lines of stdout."""
        if not self.waiting:
            return
        for at in range(begin, end):
            line = lines[at]
            if b"]" in line:  # of a log prefix, and so not of stdout
                continue
            if line[-1:].isdigit() and (records := _joined(self.waiting, line)):
                self._pairs[self.waiting, line, records] += 1
                self.waiting = b""
                return
            self._passed += 1
            # Of a whole record only the newline came late.
            if self._passed > self._far or complete(self.waiting):
                self._give_up()
                return

    def _give_up(self) -> None:
        if self.waiting and not complete(self.waiting):
            if self.waiting.endswith((b":", b": ")) and len(self._marks) < _MAX_MARKS:
                self._marks[self.waiting] += 1
            elif _HEAD.fullmatch(self.waiting):
                self.lose(self.waiting, 1)
            else:  # a line with other text, which may be all there is
                for beginning in unfinished(self.waiting, []):
                    self.lose(beginning, 1)
        self.waiting = b""

    def lose(self, head: bytes, times: int) -> None:
        """Take in the beginning of a record that has no continuation."""
        self._lost[head] += times

    def merge(self, other: Torn) -> None:
        """Take in what was found in the next part of a log, or in another log."""
        self._give_up()
        self.waiting = other.waiting
        self._pairs.update(other._pairs)
        self._lost.update(other._lost)
        self._marks.update(other._marks)

    def settle(self, copies: Copies) -> int:
        """Count the copies on stdout that are known for sure; return how many are not."""
        self._give_up()
        doubtful = False
        for (head, tail, records), times in self._pairs.items():
            proved = [record for record in records if copies.logged(record)]
            whole_head, whole_tail = complete(head), complete(tail)
            if whole_head and copies.logged(whole_head):
                continue
            if whole_head is not None:
                copies.add(whole_head, -times)  # cut in the middle of the device's index
            if whole_tail is not None and (proved or not copies.logged(whole_tail)):
                copies.add(whole_tail, -times)  # it looked like a record of its own
                doubtful = doubtful or not proved
            if len(proved) == 1:
                copies.add(proved[0], times)
            else:
                self.lose(head, times)
        correct_names(copies)
        # The same word and colon again and again is no torn record, but what grep or mpirun puts
        # before each line.
        self._lost.update(head for head, times in self._marks.items() if times == 1)
        doubled = not doubtful and not copies.without_logged()
        return without_copy(self._lost, copies, doubled=doubled)


def _joined(head: bytes, tail: bytes) -> frozenset[Record]:
    """The records that a head, or the beginning of a line with other text, may be with a tail."""
    partial = _HEAD.match(head)
    if partial is None or len(tail) > _LONGEST:
        return frozenset()
    end = partial.end()
    begin = end
    if end < len(head):
        if not _TAIL.fullmatch(tail):
            return frozenset()
        begin = head.index(b": (") + 3
        end = min(end, begin + 200)
    texts = (head[:cut] + tail for cut in range(begin, end + 1))
    return frozenset(record for text in texts if (record := read_common(text)))


def complete(text: bytes) -> Record | None:
    """The record that ``text`` is, device included."""
    if not text[-1:].isdigit() or len(text) > _LONGEST:
        return None
    return next((reading.record for reading in read(text) if reading.record.device), None)
