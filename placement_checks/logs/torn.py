"""Records torn by block buffering, and how they are put together again.

Into a file or a pipe, TensorFlow's copy on stdout comes in blocks of 4096 bytes that end anywhere,
and lines of stderr come between them. So a line of stderr may begin in the middle of a record,
and the rest of that record stands alone further down::

    tower_1/logits: (MatMul): /job:localhost/repli2018-10-21 18:30:00.140665: I tensorflow/…
    ca:0/task:0/device:GPU:1

Which line goes on with which is known by order, as stdout is one stream. It counts as proved if
the record's other copy, on stderr, says the same. What cannot be proved is counted as torn.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, MutableMapping
from itertools import islice

from placement_checks.logs.forms import Reading, Record, is_common, read, read_whole

_LOG_PREFIX = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: |I\d{4} \d\d:\d\d:[\d.]+ +\d+ )?"
    rb"(?:[IWEF] |[WEF]\d{4} [\d:.]+ +\d+ |(?<= ))\S{1,999}:\d+\] "
)
# node, node:, node: (Op, node: (Op): /job:local…, node: /job:local…
_HEAD = re.compile(
    rb"[\w.][\w.>/-]*(?::(?: (?:\((?:[\w>]+(?:\)(?::(?: (?:/[\w:/]*)?)?)?)?)?|/[\w:/]*)?)?)?"
)
_RAGGED = re.compile(rb"[\w.][\w.>/-]*: \(")
_BEGUN = re.compile(rb"[\w.>/-]: \([\w>]+\):? ?/")
_FAR = 20_000  # lines of stdout after which a head has no continuation


def cut(line: bytes) -> tuple[bytes, bytes]:
    """The torn record with which a line begins, ``b""`` if with none, and the rest of the line.

    It ends where a log prefix begins.
    """
    prefix = _LOG_PREFIX.search(line) if b"] " in line else None
    if prefix is None or not prefix.start():
        return b"", line
    head = line[: prefix.start()]
    if not _HEAD.fullmatch(head) or head[:-1].isdigit():
        return b"", line
    return head, line[prefix.end("time") if prefix["time"] else prefix.start() :]


def may_be_torn(line: bytes) -> bool:
    """Whether a line begins like a record; where it was torn other text may follow."""
    return _RAGGED.match(line) is not None


def unfinished(line: bytes, readings: list[Reading]) -> int:
    """How many records begin on a line, and do not end on it."""
    typed = sum(None not in (each.record.node, each.record.op) for each in readings)
    return max(0, len(_BEGUN.findall(line)) - typed)


class Torn:
    """Pairs heads with the lines that go on with them.

    Attributes:
        waiting: the head whose continuation has not come yet.
    """

    def __init__(self) -> None:
        self.waiting = b""
        self._passed = 0
        self._pairs: Counter[tuple[bytes, bytes, frozenset[Record]]] = Counter()
        self._lost: Counter[bytes] = Counter()

    def look(self, lines: list[bytes], heads: Mapping[bytes, bytes]) -> None:
        """Go through a block's lines; ``heads`` has those that begin with a torn record."""
        begin = 0
        for here in [at for at, line in enumerate(lines) if line in heads]:
            self._go_on(lines, begin, here)
            begin = here + 1
            head = heads[lines[here]]
            if not self.waiting or head != lines[here]:
                self._give_up()
                self.waiting = head
                self._passed = 0
        self._go_on(lines, begin, len(lines))

    def look_beyond(self, lines: list[bytes]) -> None:
        """Look for the continuation of what waits up to the next torn record."""
        ends = (at for at, line in enumerate(lines) if cut(line)[0])
        self._go_on(lines, 0, next(ends, len(lines)))

    def _go_on(self, lines: list[bytes], begin: int, end: int) -> None:
        """Look for the continuation of what waits among the lines of stdout."""
        if not self.waiting:
            return
        for line in islice(lines, begin, end):
            if b"]" in line:  # of a log prefix, and so not of stdout
                continue
            if line[-1:].isdigit() and (records := _joined(self.waiting, line)):
                self._pairs[self.waiting, line, records] += 1
                self.waiting = b""
                return
            self._passed += 1
            # Of a whole record only the newline came late.
            if complete(self.waiting) or self._passed > _FAR:
                self._give_up()
                return

    def _give_up(self) -> None:
        if self.waiting and not complete(self.waiting):
            self._lose(self.waiting, 1)
        self.waiting = b""

    def _lose(self, head: bytes, times: int) -> None:
        if _HEAD.fullmatch(head) or _BEGUN.search(head):  # else it may be no record at all
            self._lost[head] += times

    def merge(self, other: Torn) -> None:
        """Take in what was found in the next part of a log, or in another log."""
        self._give_up()
        self.waiting = other.waiting
        self._pairs.update(other._pairs)
        self._lost.update(other._lost)

    def settle(self, plain: MutableMapping[Record, int], logged: Mapping[Record, int]) -> int:
        """Count the records that are proved in ``plain``; return how many are not.

        Args:
            plain: the copies without a log prefix, mended in place.
            logged: the copies with one.
        """
        self._give_up()
        for (head, tail, records), times in self._pairs.items():
            proved = records & logged.keys()
            early, alone = complete(head), complete(tail)
            if early in logged:
                continue
            if early is not None:
                plain[early] -= times  # cut in the middle of the device's index
            if alone is not None and (proved or alone not in logged):
                plain[alone] -= times  # it looked like a record of its own
            if len(proved) == 1:
                (record,) = proved
                plain[record] = plain.get(record, 0) + times
            else:
                self._lose(head, times)
        _mend_names(plain, logged)
        # The same name and colon again and again is a file's, which grep puts before its lines.
        return sum(
            times for head, times in self._lost.items() if times == 1 or not head.endswith(b":")
        )


def _mend_names(plain: MutableMapping[Record, int], logged: Mapping[Record, int]) -> None:
    """Give the ends of names that stand alone to the names that lack a copy and end so.

    A record torn in its name leaves a line that is a record by its looks. Where its beginning ran
    into other text, only the copies tell.
    """
    alone = {record for record in plain if record.node and record not in logged}
    longer: dict[Record, list[Record]] = defaultdict(list)
    for record in logged if alone else ():
        if record.node and plain.get(record, 0) < logged[record]:
            for cut in range(1, len(record.node)):
                end = record._replace(node=record.node[cut:])
                if end in alone:
                    longer[end].append(record)
    for end, records in longer.items():
        if len(records) == 1:
            plain[records[0]] = plain.get(records[0], 0) + plain.pop(end)


def _joined(head: bytes, tail: bytes) -> frozenset[Record]:
    """The records that a head, or the beginning of a line with other text, may be with a tail."""
    partial = _HEAD.match(head)
    if partial is None or (partial.end() < len(head) and complete(tail)):
        return frozenset()
    least = len(head) if partial.end() == len(head) else head.index(b": (") + 3
    texts = (head[:cut] + tail for cut in range(least, partial.end() + 1))
    return frozenset(read_whole(text) for text in texts if is_common(text))


def complete(text: bytes) -> Record | None:
    """The record that ``text`` is, device included."""
    if not text[-1:].isdigit():
        return None
    return next((each.record for each in read(text) if each.record.device), None)
