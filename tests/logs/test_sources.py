"""Log files of all kinds: valid, invalid, compressed, cut, endless."""

from __future__ import annotations

import errno
import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from placement_checks.core import limits
from placement_checks.core.errors import InputError
from placement_checks.core.limits import Limit
from placement_checks.logs import Source, read_logs, sources

DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"


def lines(count: int, kind: str = "Add") -> bytes:
    return b"".join(f"x_{n}: ({kind}): {DEVICE}\n".encode() for n in range(count))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_single_path_is_one_log(log: Path, kind: type[str] | type[Path]) -> None:
    log.write_bytes(lines(3))

    assert read_logs(kind(log)) == read_logs([log])


def test_gzip_is_known_by_its_content(log: Path) -> None:
    log.write_bytes(gzip.compress(lines(5)) + gzip.compress(lines(7, "Mul")))

    read = read_logs([str(log)])

    assert (read.records, read.troubles) == (12, ())


def test_a_cut_gzip_file_is_read_up_to_the_cut(log: Path) -> None:
    text = lines(50_000)
    log.write_bytes(gzip.compress(text)[:-1000])

    read = read_logs([str(log)])

    assert 10_000 < read.records < 50_000
    assert len(read.troubles) == 1
    assert f"{log}: its compressed data is cut short" in read.troubles[0]


def test_a_cut_record_at_the_end_is_not_reported(log: Path) -> None:
    log.write_bytes(gzip.compress(lines(5)[:-9])[:-4])

    read = read_logs([str(log)])

    assert (read.records, read.torn) == (4, 0)
    assert read.troubles == (f"{log}: its compressed data is cut short; copy it again",)


def test_a_log_with_only_a_part_of_a_record(log: Path) -> None:
    log.write_bytes(lines(1)[:-9])

    with pytest.raises(InputError, match=r"a\.log has nothing that can be read: it ends in"):
        read_logs([str(log)])


def test_a_cut_log_without_records(log: Path) -> None:
    log.write_bytes(gzip.compress(b"step 1\n" * 99)[:-4])

    read = read_logs([str(log)])

    assert (read.records, len(read.troubles)) == (0, 1)


@pytest.mark.parametrize("time", [0x01020304, 0x41424344])
def test_an_unreadable_gzip_file(log: Path, time: int) -> None:
    # The time in its header may look like text or not.
    log.write_bytes(gzip.compress(lines(5), mtime=time)[:10] + b"\xff" * 99)

    with pytest.raises(InputError, match="has nothing that can be read: its compressed data is"):
        read_logs([str(log)])


@pytest.mark.parametrize(
    ("start", "message"),
    [(b"BZh91AY", "is compressed with bzip2; unpack it first: bunzip2"),
     (b"\xfd7zXZ\0", "is compressed with xz; unpack it first: unxz"),
     (b"PK\x03\x04", "is compressed with zip; unpack it first: unzip"),
     (b"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it first: unzstd")],
)  # fmt: skip
def test_other_compressions_are_named(log: Path, start: bytes, message: str) -> None:
    log.write_bytes(start + b"...")

    with pytest.raises(InputError) as error:
        read_logs([str(log)])
    assert str(error.value) == f"{log} {message}"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_logs([str(tmp_path / "nope.log")])
    assert str(error.value) == f"{tmp_path}/nope.log: there is no such file"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_logs([str(tmp_path)])
    assert str(error.value) == f"{tmp_path} is a directory; name the log files in it"


def test_a_file_without_read_permission(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Without chmod, because tests often run as root, which may read everything.
    monkeypatch.setattr(sources, "open", refused, raising=False)

    with pytest.raises(InputError) as error:
        read_logs([str(log)])
    assert str(error.value) == f"{log} cannot be read: Permission denied"


@pytest.mark.parametrize(
    "content",
    [
        Path(sys.executable).read_bytes()[:100_000],
        bytes(range(256)) * 40,
        b"\x89PNG\r\n\x1a\n" * 99,
    ],
    ids=["a program", "all bytes", "a picture"],
)
def test_a_binary_file_is_not_a_log(log: Path, content: bytes) -> None:
    log.write_bytes(content)

    with pytest.raises(InputError, match="is a binary file, not a log"):
        read_logs([str(log)])


EAGER = f"Executing op Add in device {DEVICE}\n".encode() * 3


@pytest.mark.parametrize("records", [lines(3), EAGER], ids=["of a graph", "eager"])
def test_records_are_read_inside_any_text(log: Path, records: bytes) -> None:
    log.write_bytes(bytes(range(256)) * 40 + b"\n" + records)

    assert read_logs([str(log)]).records == 3


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_text_in_utf_16_is_not_binary(log: Path, encoding: str) -> None:
    log.write_bytes("step 1, loss 0.3\n".encode(encoding) * 99)

    reason = read_logs([str(log)]).reason
    assert reason is not None
    assert reason.startswith("nothing in it comes from TensorFlow's runtime")


@pytest.mark.parametrize("number", [b"\1\0\0\0", b"\0\0\0\1"])
def test_binary_numbers_are_not_a_log(log: Path, number: bytes) -> None:
    log.write_bytes(number * 999)

    assert Source(str(log)).is_binary


def test_the_share_of_a_file_that_was_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK", 1000)
    log.write_bytes(lines(800))
    source = Source(str(log))
    begin = source.share

    shares = [source.share for _ in source.blocks()]

    assert (begin, shares[0] < 0.5, shares[-1]) == (0, True, 1)
    assert shares == sorted(shares)


def test_standard_input_is_read_up_to_an_interruption(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(source: Source) -> None:
        assert source.name == name
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "open", lambda *_, **__: log.open("rb"), raising=False)
    log.write_bytes(lines(9))
    name = "-"

    read = read_logs([name], watch=interrupt)

    assert (read.records, read.troubles) == (9, ("-: it was interrupted",))
    name = str(log)
    with pytest.raises(KeyboardInterrupt):
        read_logs([name], watch=interrupt)


def test_an_unreadable_file() -> None:
    with pytest.raises(InputError) as error:
        read_logs(["/proc/self/mem"])
    assert str(error.value) == "/proc/self/mem cannot be read: Input/output error"


def test_unreadable_parts_are_reported_with_their_position(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.BufferedReader):
        def read1(self, _size: int = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(
        sources, "open", lambda name, *_, **__: Failing(io.FileIO(name)), raising=False
    )
    log.write_bytes(lines(500))

    read = read_logs([str(log)])

    assert 0 < read.records < 500
    assert read.troubles == (f"{log}: it could not be read to its end (Input/output error)",)


def test_an_endless_line_is_read_up_to_a_limit(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_LINE", Limit(10_000, "bytes"))
    monkeypatch.setattr(sources, "BLOCK", 4_000)
    log.write_bytes(lines(3) + b"x" * 100_000 + b" " + lines(2) + lines(4))

    read = read_logs([str(log)])

    assert (len(read.counts), read.records) == (4, 3 + 1 + 4)  # the rest of its line is skipped
    assert read.troubles == (f"{log}: a line is longer than 10,000 bytes, and was cut off there",)


def test_everything_after_an_endless_line_is_read(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_LINE", Limit(10_000, "bytes"))
    monkeypatch.setattr(sources, "BLOCK", 4_000)
    long = lines(1).replace(b"\n", b" ") + b"x" * 100_000
    log.write_bytes(lines(3) + long + b"\n" + lines(2) + b"50%\r" + long + b"\r" + lines(4))

    read = read_logs([str(log)])

    assert read.records == 9 + 2
    assert read.troubles == (
        f"{log}: 2 lines are longer than 10,000 bytes, and were cut off there",
    )


def test_carriage_returns_end_lines(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_LINE", Limit(2000, "bytes"))
    monkeypatch.setattr(sources, "BLOCK", 500)
    log.write_bytes(lines(400).replace(b"\n", b"\r"))

    read = read_logs([str(log)])

    assert (read.records, read.troubles) == (400, ())


@pytest.mark.parametrize("size", [1, 2, 50, 53, 54, 1000])
def test_blocks_end_at_line_ends(log: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(sources, "BLOCK", size)
    log.write_bytes(lines(40))

    assert b"".join(Source(str(log)).blocks()) == b"\n" + lines(40).removesuffix(b"\n")
    assert read_logs([str(log)]).records == 40


def test_a_last_line_without_newline_counts(log: Path) -> None:
    log.write_bytes(lines(3).removesuffix(b"\n"))

    assert read_logs([str(log)]).records == 3


@pytest.mark.parametrize("version", ["1.12.3", "2.15.1", "2.21.0"])
def test_torn_records_across_blocks_have_whole_copies(
    fixtures: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    torn = [str(fixtures / "logs" / version / "session.log")]
    whole = read_logs(torn)
    monkeypatch.setattr(sources, "BLOCK", 500)

    blocks = read_logs(torn)

    assert (blocks.counts, blocks.records, blocks.torn) == (whole.counts, whole.records, 0)


def test_a_pipe_that_grows(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with open(pipe, "wb", buffering=0) as file:
            for line in lines(20).splitlines(keepends=True):
                file.write(line[:10])
                file.write(line[10:])

    writer = threading.Thread(target=write)
    writer.start()
    read = read_logs([str(pipe)])
    writer.join()

    assert read.records == 20


def test_standard_input() -> None:
    program = "from placement_checks.logs import read_logs; print(read_logs(['-']).records)"
    ran = subprocess.run([sys.executable, "-c", program], input=lines(9), capture_output=True)

    assert ran.stdout == b"9\n"
