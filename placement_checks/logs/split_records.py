"""Join records that were torn by block buffering.

In a file or pipe, stdout arrives in blocks of 4096 bytes, which end anywhere. Lines of stderr may
come between two blocks. A line of stderr may then begin in the middle of a record of stdout, and
the rest of that record is on a line of its own further down::

    tower_1/logits: (MatMul): /job:localhost/repli2018-10-21 18:30:00.140665: I tensorflow/…
    ca:0/task:0/device:GPU:1

The first part is called head, the second tail. Stdout is one stream, so the next line of stdout
that completes a head is its tail. The joined record is certain if stderr has a copy of it. If a
head has no tail, but a record on stderr begins with the head and lacks a copy on stdout, the head
counts as this copy. All other heads count as torn records.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from itertools import compress

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
    spellings,
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
_RAGGED = re.compile(rb"[\w.][\w.>/-]*: \(")
_GLUED = re.compile(rb"[\w.][\w.>/-]*: \(" + OP + rb"+\): " + DEVICE + rb"(?=\.?[A-Za-z_])")
_BEGUN = re.compile(rb"[\w.>/-]: \(" + OP + rb"+\)(?:: )?/(?=job:|jo?b?$|$)")
_TAIL = re.compile(OP + rb"{0,200}(?:\)(?:: )?)?[\w:/]{0,200}\d")
_LONGEST = 1000  # bytes of a name or head
_MAX_DISTANCE = 20_000  # lines of stdout between a head and its tail
_MAX_TRIES = 50  # lines of stdout that are searched after a line that may not be a head
_MAX_MARKS = 1000
_NAME = re.compile(rb"[\w.>/-]+:? ?")
_MAX_WITHOUT_COPY = 10_000  # with more records without a copy, the streams belong to two runs


def split_head(line: bytes) -> tuple[bytes, bytes]:
    """Split a line into the head of a torn record and the rest; the head may be ``b""``.

    A head ends at a log prefix, or, if only the newline of a record is missing, after the device.
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
    """Whether a line begins like a record, which may be torn."""
    return _RAGGED.match(line) is not None


def is_cut(line: bytes) -> bool:
    """Whether the last line of a log ends in the middle of a record."""
    readings = read(line)
    if b": (" in line or b": /job:" in line:
        *_, text = _LOG_PREFIX.split(line)
        is_head = _HEAD.fullmatch(text) is not None and not complete_record(text)
        return is_head or bool(unfinished_records(line, readings))
    return b"Executing op " in line and not readings


def unfinished_records(line: bytes, readings: list[Reading]) -> list[bytes]:
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
    """The beginning of a record. For a copy on stderr it includes the end of the log prefix."""
    before = line[max(0, match.start() - _LONGEST) : match.start() + 1]
    start = match.start() + 1 - len(before) + len(before.rstrip(NODE))
    if line[:start].endswith(b"] "):
        start -= 2
    return line[start : line.index(b")", match.start()) + 1]


class Torn:
    """Matches heads with tails.

    Attributes:
        waiting: the head without a tail so far; ``b""`` if all heads are done.
    """

    def __init__(self) -> None:
        self.waiting = b""
        self._passed = 0
        self._far = 0
        self._pairs: Counter[tuple[bytes, bytes, frozenset[Record]]] = Counter()
        self._lost: Counter[bytes] = Counter()
        self._marks: Counter[bytes] = Counter()

    def look(self, lines: list[bytes], heads: Mapping[bytes, bytes]) -> None:
        """Search the lines of a block for tails.

        Args:
            lines: the lines of stdout, and lines of stderr that begin with a head.
            heads: the head of each line that begins with one.
        """
        begin = 0
        for here in compress(range(len(lines)), map(heads.__contains__, lines)):
            self._search(lines, begin, here)
            begin = here + 1
            head = heads[lines[here]]
            if not self.waiting or head != lines[here]:
                self._give_up()
                self.waiting = head
                self._passed = 0
                self._far = _MAX_DISTANCE if _HEAD.fullmatch(head) else _MAX_TRIES
        self._search(lines, begin, len(lines))

    def _search(self, lines: list[bytes], begin: int, end: int) -> None:
        """Search ``lines[begin:end]`` for the tail of the waiting head."""
        if not self.waiting:
            return
        for at in range(begin, end):
            line = lines[at]
            if b"]" in line:  # part of a log prefix, so that the line is from stderr
                continue
            if line[-1:].isdigit() and (records := _joined(self.waiting, line)):
                if len(self._pairs) < limits.LOG_TORN.most:
                    self._pairs[self.waiting, line, records] += 1
                else:
                    self.lose(self.waiting, 1)
                self.waiting = b""
                return
            self._passed += 1
            # If the head is a whole record, only its newline was late.
            if self._passed > self._far or complete_record(self.waiting):
                self._give_up()
                return

    def _give_up(self) -> None:
        if self.waiting and not complete_record(self.waiting):
            if self.waiting.endswith((b":", b": ")) and len(self._marks) < _MAX_MARKS:
                self._marks[self.waiting] += 1
            elif _HEAD.fullmatch(self.waiting):
                self.lose(self.waiting, 1)
            else:  # a line with other text, which may not be torn at all
                for beginning in unfinished_records(self.waiting, []):
                    self.lose(beginning, 1)
        self.waiting = b""

    def lose(self, head: bytes, times: int) -> None:
        """Count the beginning of a record without a tail."""
        # So many heads are only counted: see `without_copy`.
        self._lost[head if len(self._lost) < limits.LOG_TORN.most else b""] += times

    def merge(self, other: Torn) -> None:
        """Add the results of another log of the run."""
        self._give_up()
        self.waiting = other.waiting
        self._pairs.update(other._pairs)
        self._lost.update(other._lost)
        self._marks.update(other._marks)

    def settle(self, copies: Copies) -> int:
        """Add joined records to the copies on stdout; return the number of torn records left."""
        self._give_up()
        doubtful = False
        for (head, tail, records), times in self._pairs.items():
            proved = [record for record in records if copies.logged[record]]
            whole_head, whole_tail = complete_record(head), complete_record(tail)
            if whole_head and copies.logged[whole_head]:
                continue
            if whole_head is not None:
                copies.plain[whole_head] -= times  # torn within the device's index
            if whole_tail is not None and (proved or not copies.logged[whole_tail]):
                copies.plain[whole_tail] -= times  # the tail looked like a record
                doubtful = doubtful or not proved
            if len(proved) == 1:
                copies.plain[proved[0]] += times
            else:
                self.lose(head, times)
        correct_names(copies)
        # A word with a colon that occurs again and again is not a torn record: grep and mpirun put
        # such words in front of each line.
        self._lost.update(head for head, times in self._marks.items() if times == 1)
        doubled = not doubtful and not copies.without_logged()
        return without_copy(self._lost, copies, doubled=doubled)


def _joined(head: bytes, tail: bytes) -> frozenset[Record]:
    """The records that a head, or a line that begins with a head, may form with a tail."""
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


def complete_record(text: bytes) -> Record | None:
    """The record in ``text``, if it is whole and ends with the device; else None."""
    if not text[-1:].isdigit() or len(text) > _LONGEST:
        return None
    return next((reading.record for reading in read(text) if reading.record.device), None)


def without_copy(heads: Counter[bytes], copies: Copies, *, doubled: bool) -> int:
    """Count heads as copies on stdout of records on stderr; return the number of other heads.

    Args:
        heads: heads without a tail, with their numbers.
        copies: the copies of all records.
        doubled: whether every record has a copy on stderr. A single word is then a head only if
            one of these records begins with it.
    """
    if not heads or len(heads) > _MAX_WITHOUT_COPY:
        return heads.total()
    begun = sorted(
        (text.encode(), record)
        for record in copies.lacking_plain()
        if record.node
        for text in spellings(record)
    )
    left = 0
    # Where the next text is whose record may lack copies, at or behind each position. Without it,
    # each of many equal beginnings would pass by all texts again.
    following = list(range(len(begun) + 1))
    for head in sorted(heads, key=len, reverse=True):  # the least ambiguous heads first
        at = _next_open(following, bisect_left(begun, (head,)))
        times = heads[head]
        while times and at < len(begun) and begun[at][0].startswith(head):
            record = begun[at][1]
            found = min(times, copies.logged[record] - copies.plain[record])
            copies.plain[record] += found
            times -= found
            if copies.plain[record] >= copies.logged[record]:
                following[at] = at + 1
            at = _next_open(following, at + 1)
        if not (doubled and _NAME.fullmatch(head)):
            left += times
    return left


def _next_open(following: list[int], at: int) -> int:
    """The end of the path from ``at``; the path becomes shorter for later calls."""
    end = at
    while following[end] != end:
        end = following[end]
    while following[at] != end:
        following[at], at = end, following[at]
    return end


def correct_names(copies: Copies) -> None:
    """Correct the names of records that are on stdout only, using records on stderr.

    The tail of a record torn within its name looks like a whole record. Text without a newline
    becomes part of a name: ``loss: 2.30w/read``. Only the copy on stderr has the right name.
    """
    uncopied = [record for record in copies.without_logged() if record.node]
    if not 0 < len(uncopied) <= _MAX_WITHOUT_COPY:
        return
    backwards: defaultdict[tuple[str | None, str], list[str]] = defaultdict(list)
    for node, op, device in copies.lacking_plain():
        if node and len(node) <= _LONGEST:
            backwards[op, device].append(node[::-1])
    groups = {key: (sorted(names), frozenset(names)) for key, names in backwards.items()}
    for record in uncopied:
        node, op, device = record
        if (op, device) in groups and (name := _right_name(node or "", *groups[op, device])):
            copies.rename(record, record._replace(node=name))


def _right_name(name: str, backwards: Sequence[str], known: Set[str]) -> str | None:
    """The name of the record that was printed as ``name``; None if it is not certain.

    If exactly one longer name ends with ``name``, the record was torn, and the longer name is
    right. If no longer name ends with ``name``, other text became part of ``name``, and the
    longest suffix of ``name`` that is a known name is right.

    Args:
        name: the printed name.
        backwards: names of records with the same type and device, reversed and sorted.
        known: the same names as a set.
    """
    end = name[::-1]
    begin = bisect_right(backwards, end)
    # Two names suffice to know whether there is only one.
    longer = [text for text in backwards[begin : begin + 2] if text.startswith(end)]
    if longer:
        return longer[0][::-1] if len(longer) == 1 else None
    lengths = range(len(end) - 1, 0, -1) if len(end) <= _LONGEST else ()
    return next((end[:n][::-1] for n in lengths if end[:n] in known), None)
