"""Sources of logs: files, gzip files and pipes, read in blocks of whole lines."""

from __future__ import annotations

import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from placement_checks.core import limits
from placement_checks.core.errors import InputError
from placement_checks.core.input_files import link_fault

STDIN = "-"
BLOCK = 1 << 19  # bytes; the lines of a block fit into the processor's cache
_TEXT = bytes({7, 8, 9, 10, 12, 13, 27, *range(32, 127), *range(128, 256)})
_SAMPLE = 4096  # bytes
_MAGIC = 6  # bytes that identify a format; a pipe may not provide more for a long time
_ZIPPED_BLOCK = 1 << 14  # bytes; zlib copies the rest of a block after each member
_LINE_END = re.compile(rb"[\r\n]")
_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31  # the ``wbits`` of zlib for gzip
_OTHERS = {
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
}


class Source:
    """A log, which can be read once.

    Attributes:
        name: the name that the user gave.
        size: the size of the file in bytes; None for a pipe.
        share: the part that has been read, from 0 to 1; always 0 for a pipe.
        troubles: why parts were not read, one clause each.
        sample: the beginning of the log, uncompressed.
        ends: whether a line end follows the current block. False for the last block only, if the
            log does not end with a newline.
    """

    def __init__(self, name: str, *, packed: bool = True) -> None:
        """Open a log.

        Raises:
            InputError: the file does not exist, is a directory or cannot be opened; or ``packed``
                is true, and another program than gzip has compressed the file.
        """
        self.name = name
        self.share = 0.0
        self.troubles: list[str] = []
        self.ends = True
        self._file = _opened(name)
        status = os.fstat(self._file.fileno())
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        try:
            self.sample = self._file.read(min(_SAMPLE, _MAGIC if self.size is None else _SAMPLE))
        except OSError as error:
            raise InputError(
                name, f"cannot be read: {error.strerror}", is_predicate=True
            ) from None
        self._start = self.sample
        self._zipped = packed and self.sample.startswith(_GZIP)
        if self._zipped:
            try:
                self.sample = zlib.decompressobj(wbits=_GZIP_FORMAT).decompress(self.sample)
            except zlib.error:
                self.sample = b""  # reading it says why
        for start, (kind, command) in _OTHERS.items():
            if packed and self.sample.startswith(start):
                raise InputError(
                    name,
                    f"is compressed with {kind}",
                    f"unpack it first: {command}",
                    is_predicate=True,
                )

    @property
    def is_binary(self) -> bool:
        """Whether the sample is not text: neither UTF-16 nor a superset of ASCII."""
        sample = self.sample.lstrip(b"\0")  # a log that was truncated while it was written
        halves = [half.count(0) for half in (sample[::2], sample[1::2])]
        if max(halves) * 3 > len(sample) and min(halves) * 50 < len(sample):  # UTF-16
            return False
        return len(sample.translate(None, _TEXT)) * 20 > len(sample)

    def blocks(self) -> Iterator[bytes]:
        """Yield the log in blocks of whole lines, each with a line end in front of it.

        The first line gets a line end too. A read error ends the log and is added to ``troubles``.
        """
        line = bytearray(b"\n")
        too_long = 0
        skipping = False
        for data in self._read():
            if skipping:
                line_end = _LINE_END.search(data)
                data = data[line_end.start() :] if line_end else b""
                skipping = line_end is None
            end = max(data.rfind(b"\n"), data.rfind(b"\r"))
            if end >= 0:
                yield b"".join((line, memoryview(data)[:end]))  # copied once
                line = bytearray(data[end:])
                continue
            line += data
            if len(line) > limits.LOG_LINE.most:
                yield bytes(line[: limits.LOG_LINE.most])
                line = bytearray(b"\n")
                too_long += 1
                skipping = True
        if line != b"\n":
            self.ends = False
            yield bytes(line)
        if too_long:
            several = too_long > 1
            lines, was = (f"{too_long} lines are", "were") if several else ("a line is", "was")
            most = limits.LOG_LINE.most
            self.troubles.append(f"{lines} longer than {most:,} bytes, and {was} cut off there")

    def _read(self) -> Iterator[bytes]:
        with self._file:
            try:
                yield from self._unzipped() if self._zipped else self._raw(BLOCK)
            except OSError as error:
                self.troubles.append(f"it could not be read to its end ({error.strerror})")

    def _raw(self, block: int) -> Iterator[bytes]:
        data = self._start
        while data:
            if self.size:
                self.share = min(1.0, self._file.tell() / self.size)
            yield data
            data = self._file.read1(block)

    def _unzipped(self) -> Iterator[bytes]:
        """The contents of all gzip members of the file."""
        unzip = zlib.decompressobj(wbits=_GZIP_FORMAT)
        within = False
        unpacked = 0
        try:
            for data in self._raw(_ZIPPED_BLOCK):
                while data:
                    text = unzip.decompress(data, BLOCK)
                    unpacked += len(text)
                    if unpacked > limits.LOG_UNPACKED.most:
                        limit = limits.LOG_UNPACKED
                        self.troubles.append(
                            f"only {limit}, and the rest was not read; unpack it first: gunzip"
                        )
                        return
                    yield text
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
        raise InputError(
            name, "is a directory", "name the log files in it", is_predicate=True
        ) from None
    except FileNotFoundError:
        if fault := link_fault(Path(name)):
            raise InputError(name, fault, "replace the link") from None
        raise InputError(name, "there is no such file") from None
    except OSError as error:
        if fault := link_fault(Path(name)):
            raise InputError(name, fault, "replace the link") from None
        raise InputError(name, f"cannot be read: {error.strerror}", is_predicate=True) from None
