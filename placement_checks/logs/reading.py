"""Read logs block by block. Memory use depends only on the number of distinct records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from operator import not_
from pathlib import Path

from placement_checks.core import limits
from placement_checks.core.errors import InputError
from placement_checks.logs.copies import Copies
from placement_checks.logs.hints import Hints
from placement_checks.logs.log import Log
from placement_checks.logs.record_formats import Reading, Record, read, read_common
from placement_checks.logs.sources import STDIN, Source
from placement_checks.logs.torn_lines import Torn, complete_record, head_of, is_cut
from placement_checks.logs.unwrap import Unwrapper
from placement_checks.util.resources import gc_paused

# The start of a line, with any log prefix of TensorFlow or absl. The time differs in every line;
# the group is the rest of the prefix, which many lines share:
# 2024-01-21 21:16:10.179741: I tensorflow/…/placer.cc:125] | I0000 00:00:1795000000.179741   19303
# `read` handles prefixes without a time or an "I". Matching them here would slow down other lines.
_START = re.compile(
    rb"\n(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: |I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ )?"
    rb"((?:I |(?<= ))\S{1,200}\.cc:\d{1,9}\] )?"
)
_MAX_ODD = 50_000  # cached readings of lines in unusual forms
_LONGEST_ODD = 1000  # bytes of such a line
_MOST_SHOWN = 80  # characters of a torn record
_CUT = "it ends in the middle of a record; copy it again when the process has ended"

Watch = Callable[[Source], None]


def read_logs(
    names: str | Path | Sequence[str | Path], *, watch: Watch | None = None, packed: bool = True
) -> Log:
    """Read one log, or several logs of one run: stdout and stderr may be in different files.

    Args:
        names: one path or several; ``-`` is standard input. gzip files are unpacked.
        watch: called with the source after each block, to show progress.
        packed: whether to unpack compressed files, and to refuse binary files.

    Raises:
        InputError: a file does not exist, cannot be read, or is not text.
    """
    paths = [names] if isinstance(names, str | Path) else names
    total = Tally()
    troubles: list[str] = []
    with gc_paused():
        for name in map(str, paths):
            source = Source(name, packed=packed)
            tally = _read(source, watch)
            if packed and source.is_binary and not tally.has_records:
                raise InputError(
                    name,
                    "is a binary file, not a log",
                    "name a file with the output of the process",
                    is_predicate=True,
                )
            if source.troubles and not tally.has_text:
                raise InputError(
                    name, f"has nothing that can be read: {source.troubles[0]}", is_predicate=True
                )
            total.merge(tally)
            troubles += [f"{name}: {trouble}" for trouble in source.troubles]
        return total.log(" + ".join(map(str, paths)), troubles)


def _read(source: Source, watch: Watch | None) -> Tally:
    tally = Tally()
    unwrapper = Unwrapper()
    try:
        for raw in source.blocks():
            block = unwrapper.unwrap(raw)
            tally.add(block if source.ends else _without_cut_record(block, source))
            if watch:
                watch(source)
            if limit := tally.exceeded:
                source.troubles.append(
                    f"it exceeds the limit of {limit}, and the rest was not read"
                )
                break
    except KeyboardInterrupt:
        if source.name != STDIN:
            raise
        source.troubles.append("it was interrupted")
    if rest := unwrapper.rest():
        tally.add(_without_cut_record(b"\n" + rest, source))
    source.troubles += sorted(unwrapper.troubles)
    return tally


def _without_cut_record(block: bytes, source: Source) -> bytes:
    """Drop the last line of a log if it ends in the middle of a record."""
    end = block.rfind(b"\n")
    if not is_cut(block[end + 1 :]):
        return block
    if not source.troubles:
        source.troubles.append(_CUT)
    return block[:end]


class Tally:
    """The records of a log, counted block by block."""

    def __init__(self) -> None:
        self._known: dict[bytes, Record] = {}
        self._odd: dict[bytes, Reading] = {}
        self._text = 0  # bytes of the different placements
        self._copies = Copies()
        self._torn = Torn()
        self._hints = Hints()

    def add(self, block: bytes) -> None:
        """Count the lines of a block, each with its newline in front; blocks must be in order."""
        plain, logged, prefixes = _streams(block)
        heads: dict[bytes, bytes] = {}
        is_wrapped = False
        for line, times in self._count(plain, self._copies.plain).items():
            is_wrapped = is_wrapped or line.startswith((b"/job:", b"("))
            if head := head_of(line):
                heads[line] = head
                if record := complete_record(head):
                    self._copies.plain[record] += times
            self._add_odd(line[len(head) :], times)
        if others := self._count(logged, self._copies.logged):
            prefix_of = dict(zip(logged, prefixes, strict=True))
            for text, times in others.items():
                self._add_odd(prefix_of[text] + text, times)
        if heads or is_wrapped or self._torn.waiting:
            self._torn.follow(plain, heads)

    def _count(self, texts: Sequence[bytes], stream: Counter[Record]) -> dict[bytes, int]:
        """Count texts that are one record in a common form; return the counts of other texts.

        Most lines consist of such a record. Both copies of a record have the same text.
        """
        known = self._known
        others = {}
        for text, times in Counter(texts).items():
            record = known.get(text)
            if record is None:
                record = read_common(text)
                if record is None:
                    others[text] = times
                    continue
                known[text] = record
                self._text += len(text)
            stream[record] = stream.get(record, 0) + times  # quicker than += for new keys
        return others

    def _add_odd(self, line: bytes, times: int) -> None:
        """Count the records of a line in any form, or look for hints in it."""
        known = line in self._odd
        readings = [self._odd[line]] if known else read(line)
        for record, logged in readings:
            stream = self._copies.logged if logged else self._copies.plain
            if record not in stream:
                self._text += sum(len(part or "") for part in record)
            stream[record] += times
        is_torn = not known and self._torn.look(line, readings, times)
        if not readings:
            self._hints.look(line, times)
        elif (
            len(readings) == 1
            and not is_torn
            and len(line) <= _LONGEST_ODD
            and len(self._odd) < _MAX_ODD
        ):
            self._odd[line] = readings[0]

    def merge(self, other: Tally) -> None:
        """Add the counts of another log of the run."""
        self._copies.update(other._copies)
        self._torn.merge(other._torn)
        self._hints.merge(other._hints)

    @property
    def exceeded(self) -> limits.Limit | None:
        """The limit that the placements exceed; None if they are within the limits."""
        placements = max(len(self._copies.plain), len(self._copies.logged), len(self._known))
        if placements > limits.LOG_PLACEMENTS.most:
            return limits.LOG_PLACEMENTS
        return limits.LOG_TEXT if self._text > limits.LOG_TEXT.most else None

    @property
    def has_records(self) -> bool:
        return bool(self._copies)

    @property
    def has_text(self) -> bool:
        return self.has_records or self._hints.has_text

    def log(self, name: str, troubles: Sequence[str] = ()) -> Log:
        """The log of everything that was counted; no lines may be added afterwards."""
        copies = self._copies
        lost, copied = self._torn.settle(copies)
        records = copies.total() + copied
        _remove_progress_dots(copies)
        counts = copies.placements()
        return Log(
            name,
            counts,
            records,
            lost.total(),
            next(map(_shown, lost), ""),
            frozenset(self._hints.devices),
            None if counts else self._hints.reason(lost.total()),
            tuple(troubles),
        )


def _streams(block: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The lines of stdout; the lines of stderr without their log prefixes; the prefixes."""
    _, *pieces = _START.split(block)
    prefixes, texts = pieces[::2], pieces[1::2]
    plain = list(compress(texts, map(not_, prefixes)))
    return plain, list(compress(texts, prefixes)), list(filter(None, prefixes))


def _shown(text: bytes) -> str:
    """A part of a torn record, as it can be searched for in the log."""
    return text.removeprefix(b"] ").decode(errors="replace")[:_MOST_SHOWN].strip()


def _remove_progress_dots(copies: Copies) -> None:
    """Remove pytest's progress dots in front of the names of nodes."""
    for record in copies.without_logged():
        if record.node and record.node[0] == ".":
            node = record.node.lstrip(".")
            if node[:1].isalnum():
                copies.rename(record, record._replace(node=node))
