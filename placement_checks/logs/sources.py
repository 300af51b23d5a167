"""Where logs come from: files, compressed ones, a pipe; read in blocks of whole lines."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from itertools import pairwise

from placement_checks.errors import InputError

STDIN = "-"
BLOCK = 1 << 19  # bytes; small enough for the lines of a block to stay in the processor's cache
LONGEST = 1 << 20  # bytes of a line that are read
SHORTEST_PART = 1 << 24  # bytes for which a process of its own is worth its start
_TEXT = bytes({7, 8, 9, 10, 12, 13, 27, *range(32, 127), *range(128, 256)})
_GZIP = b"\x1f\x8b"
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
        troubles: what was not read, sentence by sentence.
        binary: whether it begins like no text.
    """

    def __init__(self, name: str, begin: int = 0, end: int | None = None) -> None:
        """Open a log, or the part of it between two places that `parts` found.

        Raises:
            InputError: there is no such file, it is a folder, or it cannot be opened.
        """
        self.name = name
        self._begin = begin
        self._end = end
        self.troubles: list[str] = []
        self._file = _opened(name)
        status = os.fstat(self._file.fileno())
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        magic = self._file.peek(6)[:6]
        for start, (kind, command) in _OTHERS.items():
            if magic.startswith(start):
                raise InputError(name, f"is compressed by {kind}", f"unpack it first: {command}")
        self._zipped = magic.startswith(_GZIP)
        self.binary = False

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
                return [self]
            places.append(self._file.tell())
        self._file.close()
        return [Source(self.name, begin, end) for begin, end in pairwise([*places, self.size])]

    @property
    def share(self) -> float:
        """How much has been read, from 0 to 1; 0 for a pipe, whose end nobody knows."""
        end = self.size if self._end is None else self._end
        return (self._file.tell() - self._begin) / (end - self._begin) if end else 0

    def blocks(self) -> Iterator[bytes]:
        """The log in blocks of whole lines; each line comes behind its line end.

        The first one too, behind one that the log need not have. What cannot be read ends it,
        and is told in ``troubles``.
        """
        carry = b"\n"
        too_long = 0
        skipping = False
        for data in self._read():
            if skipping:
                data = data[_first_end(data) :]
                skipping = not data
            end = max(data.rfind(b"\n"), data.rfind(b"\r") if b"\n" not in data else -1)
            if end >= 0:
                yield carry + data[:end]
                carry = data[end:]
            else:
                carry += data
            if len(carry) > LONGEST:
                yield carry[:LONGEST]
                carry = b"\n"
                too_long += 1
                skipping = True
        if len(carry) > 1:
            yield carry
        if too_long:
            lines = "a line is" if too_long == 1 else f"{too_long} lines are"
            self.troubles.append(f"{lines} longer than 1 MiB, and was read no further")

    def beyond(self) -> Iterator[bytes]:
        """Blocks of lines from behind the end of this part."""
        if self._end is not None and self._end < (self.size or 0):
            yield from Source(self.name, self._end).blocks()

    def _read(self) -> Iterator[bytes]:
        with self._file:
            stream = gzip.GzipFile(fileobj=self._file) if self._zipped else self._file
            try:
                if self.name != STDIN and self.size is not None:
                    self._file.seek(self._begin)
                left = total = sys.maxsize if self._end is None else self._end - self._begin
                while data := stream.read1(min(BLOCK, left)):
                    if left == total:
                        self.binary = _looks_binary(data[:4096])
                    left -= len(data)
                    yield data
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self.troubles.append(f"its compressed data is cut short or damaged ({error})")
            except OSError as error:
                self.troubles.append(f"it could not be read to its end ({error.strerror})")


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


def _looks_binary(sample: bytes) -> bool:
    """Whether a file that begins so is no text, in UTF-16 or any superset of ASCII."""
    sample = sample.lstrip(b"\0")  # a log that was cut to nothing while it was written
    halves = [half.count(0) for half in (sample[::2], sample[1::2])]
    if max(halves) * 3 > len(sample) and min(halves) * 50 < len(sample):  # UTF-16
        return False
    return len(sample.translate(None, _TEXT)) * 20 > len(sample)
