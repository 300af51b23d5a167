"""Where logs come from: files, compressed ones, a pipe; read in blocks of whole lines."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from itertools import pairwise

from placement_checks.core.errors import InputError

STDIN = "-"
BLOCK = 1 << 19  # bytes; small enough for the lines of a block to stay in the processor's cache
LONGEST = 1 << 24  # bytes of a line that are read
SHORTEST_PART = 1 << 23  # bytes for which a process of its own is worth its start
_TEXT = bytes({7, 8, 9, 10, 12, 13, 27, *range(32, 127), *range(128, 256)})
_SAMPLE = 4096  # bytes
_MAGIC = 6  # bytes; of a pipe no more are waited for
_ZIPPED_BLOCK = 1 << 14  # bytes; behind each member zlib copies the rest of it
_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31  # zlib's number of it
_OTHERS = {
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
}


class Source:
    """One log, read once.

    Attributes:
        name: as the user wrote it.
        size: of the file in bytes; None for a pipe.
        share: how much has been read, from 0 to 1; 0 for a pipe, whose length is not known.
        troubles: why parts of it were not read, one clause each.
        sample: its beginning, unpacked.
        ends: whether a line end follows the last block; one follows every other block.
    """

    def __init__(
        self, name: str, begin: int = 0, end: int | None = None, *, packed: bool = True
    ) -> None:
        """Open a log, or the part of it between two places that `parts` found.

        Raises:
            InputError: there is no such file, it is a folder, or it cannot be opened; or, where it
                may be ``packed``, it is compressed by another program than gzip.
        """
        self.name = name
        self.share = 0.0
        self.troubles: list[str] = []
        self.ends = True
        self._begin = begin
        self._end = end
        self._file = _opened(name)
        status = os.fstat(self._file.fileno())
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        if begin:
            self._file.seek(begin)
        try:
            self.sample = self._file.read(min(_SAMPLE, _MAGIC if self.size is None else _SAMPLE))
        except OSError as error:
            raise InputError(name, f"cannot be read: {error.strerror}") from None
        self._start = self.sample
        self._zipped = packed and not begin and self.sample.startswith(_GZIP)
        if self._zipped:
            with contextlib.suppress(zlib.error):
                self.sample = zlib.decompressobj(wbits=_GZIP_FORMAT).decompress(self.sample)
        for start, (kind, command) in _OTHERS.items():
            if packed and not begin and self.sample.startswith(start):
                raise InputError(name, f"is compressed with {kind}", f"unpack it first: {command}")

    @property
    def is_binary(self) -> bool:
        """Whether its beginning is not text, neither UTF-16 nor any superset of ASCII."""
        sample = self.sample.lstrip(b"\0")  # a log that was cut to nothing while it was written
        halves = [half.count(0) for half in (sample[::2], sample[1::2])]
        if max(halves) * 3 > len(sample) and min(halves) * 50 < len(sample):  # UTF-16
            return False
        return len(sample.translate(None, _TEXT)) * 20 > len(sample)

    def parts(self, most: int) -> list[Source]:
        """Up to ``most`` parts of whole lines, in order; a short or zipped log is one part."""
        if self.name == STDIN or self.size is None or self._zipped:
            return [self]
        number = min(most, self.size // SHORTEST_PART)
        if number < 2:
            return [self]
        places = [0]
        for part in range(1, number):
            self._file.seek(self.size * part // number)
            if not self._file.readline(LONGEST).endswith(b"\n"):
                self._file.seek(len(self._start))
                return [self]
            places.append(self._file.tell())
        self._file.close()
        return [Source(self.name, begin, end) for begin, end in pairwise([*places, self.size])]

    def anew(self) -> Source:
        """The same part, opened again: processes that were forked share where they are in it."""
        return Source(self.name, self._begin, self._end)

    def blocks(self) -> Iterator[bytes]:
        """The log in blocks of whole lines; each line comes behind its line end.

        The first one too, behind one that the log need not have. What cannot be read ends it,
        and is noted in ``troubles``.
        """
        line = bytearray(b"\n")
        too_long = 0
        skipping = False
        for data in self._read():
            if skipping:
                data = data[_first_end(data) :]
                skipping = not data
            end = max(data.rfind(b"\n"), data.rfind(b"\r"))
            if end >= 0:
                yield b"".join((line, memoryview(data)[:end]))  # copied once
                line = bytearray(data[end:])
                continue
            line += data
            if len(line) > LONGEST:
                yield bytes(line[:LONGEST])
                line = bytearray(b"\n")
                too_long += 1
                skipping = True
        if line != b"\n":
            self.ends = False
            yield bytes(line)
        if too_long:
            several = too_long > 1
            lines, was = (f"{too_long} lines are", "were") if several else ("a line is", "was")
            self.troubles.append(f"{lines} longer than 16 MiB, and {was} cut off there")

    def beyond(self) -> Iterator[bytes]:
        """Blocks of lines from behind the end of this part."""
        if self._end is not None and self._end < (self.size or 0):
            yield from Source(self.name, self._end).blocks()

    def _read(self) -> Iterator[bytes]:
        with self._file:
            try:
                yield from self._unzipped() if self._zipped else self._raw(BLOCK)
            except OSError as error:
                self.troubles.append(f"it could not be read to its end ({error.strerror})")

    def _raw(self, most: int) -> Iterator[bytes]:
        end = self.size if self._end is None else self._end
        left = sys.maxsize if self._end is None else self._end - self._begin
        data = self._start[:left]
        while data:
            left -= len(data)
            if end:
                self.share = min(1.0, (self._file.tell() - self._begin) / (end - self._begin))
            yield data
            data = self._file.read1(min(most, left))

    def _unzipped(self) -> Iterator[bytes]:
        """What the gzip members of the file hold, one behind the other."""
        unzip = zlib.decompressobj(wbits=_GZIP_FORMAT)
        within = False
        try:
            for data in self._raw(_ZIPPED_BLOCK):
                while data:
                    yield unzip.decompress(data, BLOCK)
                    within = not unzip.eof
                    data = unzip.unconsumed_tail
                    if unzip.eof:
                        data = unzip.unused_data.lstrip(b"\0")
                        unzip = zlib.decompressobj(wbits=_GZIP_FORMAT)
            yield unzip.flush()
        except zlib.error as error:
            self.troubles.append(f"its compressed data is damaged ({error}); copy it again")
            return
        if within:
            self.troubles.append("its compressed data is cut short; copy it again")


def _opened(name: str) -> io.BufferedReader:
    try:
        return open(0 if name == STDIN else name, "rb", closefd=name != STDIN)
    except IsADirectoryError:
        raise InputError(name, "is a folder", "name the log files in it") from None
    except FileNotFoundError:
        raise InputError(name, "there is no such file") from None
    except OSError as error:
        raise InputError(name, f"cannot be read: {error.strerror}") from None


def _first_end(data: bytes) -> int:
    """Where the first line end of ``data`` is; its length where there is none."""
    ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
    return min(ends, default=len(data))
