"""Damaged and malicious logs: read or refused, in time, without internal errors."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.fuzzing import examples
from support.growth import check_linear

from placement_checks import verify
from placement_checks.core import limits
from placement_checks.core.errors import PlacementError
from placement_checks.core.limits import Limit
from placement_checks.logs import Log, read_logs, sources
from placement_checks.logs.copies import Copies
from placement_checks.logs.reading import Tally
from placement_checks.logs.record_formats import Record
from placement_checks.logs.unwrap import Unwrapper
from placement_checks.report.commands.log import render_json, render_lines, render_text

DEVICE = "/job:localhost/replica:0/task:0/device:GPU:1"
LINES = b"".join(f"tower_1/x_{n}: (MatMul): {DEVICE}\n".encode() for n in range(40))
SECONDS = 8  # normally a fraction of a second; quadratic time would take minutes

in_a_folder = settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)

fragments = st.sampled_from(
    [
        b"x", b"tower_1/w", b": (", b"MatMul", b"): ", b")", b"/job:", b" ", b"\n", b"\\n",
        b"9" * 30, DEVICE.encode(), b"/job:localhost/repl", b"ca:0/task:0/device:GPU:1\n",
        b"GPU:0100", b"...", b"/job:ps/replica:0/task:1/cpu:0", b"GPU:1y", b"(unspecified)",
        b"\xf6", b"\xe2\x80\xae", b"2018-10-21 18:30:00.140665: ",
        b"I tensorflow/core/placer.cc:922] ", b"W a/b.cc:1] ",
        b"I0000 00:00:1795000000.179741   19303 placer.cc:162] ", b"Executing op ", b" in device ",
        b" on task ", b" placed on: ", b"Device mapping:\n", b" -> device: 0", b"\\u202e",
        b"1e999", b"\r", b"\r\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[31m", b"\x1b]",
        b"[1;1m", b"<pre>", b'{"log":"', b'","stream":"stdout"}', b'{"message":"',
        b'{"a":[120,58,32]}', b'"}', b"{", b"}", b"&gt;", b"2024-01-21T21:16:10Z ", b"stdout F ",
        b"stderr P ", b"stdout P ", b"0: ", b".", b"[1,0]<stderr>:", b"worker_1  | ", b"\x1f\x8b",
        b"BZh", b"PK\x03\x04",
    ]
)  # fmt: skip
texts = st.lists(fragments | st.binary(max_size=8), max_size=40).map(b"".join)


def in_json(text: bytes) -> bytes:
    lines = text.decode(errors="replace").split("\n")
    return "\n".join(json.dumps({"log": line, "stream": "stdout"}) for line in lines).encode()


def in_pieces(text: bytes) -> bytes:
    pieces = (text[at : at + 7].replace(b"\n", b" ") for at in range(0, len(text), 7))
    ends = (b"F" if number % 3 else b"P" for number in range(len(text)))
    return b"\n".join(
        b"2024-01-21T21:16:10Z stdout %b %b" % (end, piece)
        for end, piece in zip(ends, pieces, strict=False)
    )


CARRIERS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": bytes,
    "docker": in_json,
    "Kubernetes": in_pieces,
    "journald": lambda text: json.dumps({"MESSAGE": list(text)}).encode(),
    "gzip": gzip.compress,
    "gzip, damaged": lambda text: gzip.compress(text)[:-9] + b"\xff",
    "UTF-16": lambda text: text.decode("latin-1").encode("utf-16"),
    "base64": base64.b64encode,
}


def check_error(error: PlacementError) -> None:
    assert error.object
    assert error.message


def everything_of(log: Log) -> None:
    """Compute everything that can be computed from a log."""
    assert log.records >= sum(log.counts.values()) >= len(log.counts)
    assert log.torn >= 0
    render_text(log), render_json(log), render_lines(log)
    verify(log.placement())


@pytest.mark.parametrize("carrier", CARRIERS)
@in_a_folder
@given(text=texts)
@example(text=b"\xff\xfe: (Add): /job:localhost/replica:0/task:0/cpu:0\n")
@example(text=b'{"log":"x: (Add): /job:l","stream":"\\ud800"}\n{"log":1e999,"stream":{}}\n')
@example(text=b"x: (Add): /job:a/replica:0/task:0/device:GPU:99999999\n")
def test_any_text_is_read_or_refused(carrier: str, text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(CARRIERS[carrier](text))

    try:
        everything_of(read_logs([file]))
    except PlacementError as error:
        check_error(error)


changes = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 40), st.binary(max_size=20) | fragments),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("version", ["0.12.1", "1.12.3", "2.15.1", "2.21.0"])
@in_a_folder
@given(changes=changes, begin=st.integers(0, 1 << 16))
def test_changed_real_logs_are_read_or_refused(
    version: str,
    changes: Sequence[tuple[int, int, bytes]],
    begin: int,
    fixtures: Path,
    tmp_path: Path,
) -> None:
    text = bytearray((fixtures / "logs" / version / "session.log").read_bytes())
    text = text[begin % len(text) :][:6000]
    for at, length, new in changes:
        at %= len(text) + 1
        text[at : at + length] = new
    file = tmp_path / "a.log"
    file.write_bytes(text)

    try:
        everything_of(read_logs([file]))
    except PlacementError as error:
        check_error(error)


@in_a_folder
@given(at=st.integers(0, 1 << 16), new=st.binary(max_size=3), is_cut=st.booleans())
def test_damage_to_a_compressed_log_is_reported(
    at: int, new: bytes, is_cut: bool, tmp_path: Path
) -> None:
    """Either the log is complete, or the loss is reported."""
    packed = bytearray(gzip.compress(LINES * 40))
    at %= len(packed)
    packed[at : len(packed) if is_cut else at + len(new)] = new
    file = tmp_path / "a.log.gz"
    file.write_bytes(packed)

    try:
        log = read_logs([file])
    except PlacementError:
        return
    assert log.unread or log.reason or log.records == 40 * 40


@in_a_folder
@given(end=st.integers(LINES.index(b"\n"), len(LINES)))
def test_a_log_cut_within_a_record_is_reported(end: int, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(LINES[:end])
    last = LINES[:end].rpartition(b"\n")[2]

    log = read_logs([file])

    placed = sum(count for record, count in log.counts.items() if record.device)
    assert placed == LINES[:end].count(b"\n") + last.endswith(b":1")
    assert bool(log.unread) == (b": (" in last and not last.endswith(b":1"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "text",
    [
        b"t stdout P aaaaaaaa\n" * 125_000,
        b'{"log":"a\\n","stream":"x"}\n' + b'{"log":"aaaaaaaa","stream":"x"}\n' * 125_000,
        gzip.compress(LINES) + gzip.compress(b"") * 80_000,
        gzip.compress(LINES) + bytes(1 << 20),
    ],
    ids=["CRI, pieces of one line", "docker, pieces of one line", "gzip members", "padding"],
)
def test_reading_time_is_linear(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(text)
    begin = time.process_time()

    read_logs([file])

    assert time.process_time() - begin < SECONDS


def read_text(text: bytes) -> Log:
    tally = Tally()
    tally.add(b"\n" + Unwrapper().unwrap(text))
    return tally.log("a log")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "text",
    [
        lambda size: b"x: (" + f"{DEVICE} ".encode() * size,
        lambda size: DEVICE.encode() * size,
        lambda size: b"Executing op " + f"{DEVICE} ".encode() * size,
        lambda size: b"1] x: (A)/job:" * size,
    ],
    ids=["after a beginning", "without blanks", "after an eager op", "beginnings"],
)
def test_time_grows_with_the_length_of_a_line(text: Callable[[int], bytes]) -> None:
    check_linear(lambda size: read_text(text(size)), 6000)


@pytest.mark.nightly
def test_time_grows_with_the_number_of_equal_beginnings() -> None:
    """Beginnings of records on stdout, which match all records on stderr."""

    def match(size: int) -> None:
        copies = Copies()
        copies.logged.update(Record(f"{'a' * 500}{n}", "A", DEVICE) for n in range(size))
        beginnings = Counter({b"a" * (n + 1): size for n in range(size)})
        assert copies.begun_by(beginnings).total() == size

    check_linear(match, 100)


def test_names_far_in_front_of_a_device() -> None:
    """A record behind other devices is read; a name that is too long is not cut off."""
    padding = f"{DEVICE} " * 300
    (record,) = read_text(f"{padding}x/y: (Add): {DEVICE}".encode()).counts

    assert record == ("x/y", "Add", DEVICE)
    assert not read_text(f"{DEVICE} {'x' * 5000}: (Add): {DEVICE}".encode()).counts


def test_the_number_of_streams_is_limited(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    lines = [{"log": "end\n", "stream": "stdout"}]
    lines += [{"log": "x" * 1000, "stream": str(number)} for number in range(20)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + LINES.decode())

    log = read_logs([file])

    assert len(log.counts) == 40
    assert "exceeds the limit of 16 streams of a log whose lines are in pieces" in log.unread


@pytest.mark.parametrize(
    ("name", "most"), [("LOG_PLACEMENTS", 30), ("LOG_TEXT", 1000), ("LOG_UNPACKED", 1000)]
)
def test_a_log_is_read_up_to_a_limit(
    name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, name, Limit(most, "things of a log"))
    monkeypatch.setattr(sources, "BLOCK", 500)
    monkeypatch.setattr(sources, "_SAMPLE", 500)
    file = tmp_path / "a.log"
    file.write_bytes(gzip.compress(LINES) if name == "LOG_UNPACKED" else LINES)

    log = read_logs([file])

    assert 0 < len(log.counts) < 40
    assert f"{most:,} things of a log, and the rest was not read" in log.unread
    assert all(verdict.state != "kept" for verdict in verify(log.placement()).verdicts)


@pytest.mark.nightly
@settings(max_examples=examples(40), deadline=None)
@given(unit=st.lists(fragments, min_size=1, max_size=4).map(b"".join))
def test_reading_time_is_linear_for_any_repeated_text(unit: bytes) -> None:
    begin = time.process_time()

    read_text(unit * (200_000 // len(unit)))

    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize("unit", [b"\0", b"a", LINES], ids=["NUL", "a", "log"])
def test_a_compression_bomb_takes_little_memory(unit: bytes, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    piece = unit * ((1 << 20) // len(unit))
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(piece)
    program = (
        "import sys\n"
        "from placement_checks.logs import read_logs\n"
        "from placement_checks.core.errors import PlacementError\n"
        "try: read_logs([sys.argv[1]])\n"
        "except PlacementError: pass\n"
        "print(*(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line))"  # KiB
    )

    ran = subprocess.run([sys.executable, "-c", program, bomb], capture_output=True, check=True)

    assert bomb.stat().st_size < 2_000_000
    assert int(ran.stdout) < 90 * 1024
