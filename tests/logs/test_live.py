"""Output of C is caught and read, and still reaches its streams."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest
from support.descriptors import open_files

from placement_checks import assert_variables_on_host, catch_log
from placement_checks.core.errors import InputError
from placement_checks.logs import Record

libc = ctypes.CDLL(None)
DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"
ADD = f"x: (Add): {DEVICE}\n"
PREFIX = "2018-10-21 18:30:00.140665: I tensorflow/core/common_runtime/placer.cc:54] "


def printed(text: str) -> None:
    """Print like the placer: C buffers the output if stdout is not a terminal."""
    libc.printf(b"%s", text.encode())


def logged(text: str) -> None:
    os.write(2, (PREFIX + text).encode())


def test_both_streams_are_one_log() -> None:
    with catch_log() as caught:
        printed(ADD)
        logged(ADD)

    log = caught.log()

    assert (log.counts, log.records, log.reason) == ({Record("x", "Add", DEVICE): 1}, 2, None)
    assigned = caught.placement().ops["x"].assigned
    assert assigned is not None
    assert assigned.short == "/device:GPU:0"


def test_a_log_can_be_read_inside_the_block() -> None:
    with catch_log() as caught:
        printed(ADD)
        assert caught.log().records == 1
        printed(ADD)
        assert caught.log().records == 2


def test_a_partly_caught_log_keeps_no_rule() -> None:
    whole = "w: (VarHandleOp): /job:localhost/replica:0/task:0/device:CPU:0\n"
    torn = "v: (VarHandleOp): /job:localhost/repl"
    with catch_log() as caught:
        printed(ADD + whole)
    with catch_log() as caught_in_part:
        printed(ADD + whole + torn)

    assert_variables_on_host(caught.placement())
    with pytest.raises(
        AssertionError, match="could not be checked on the caught log: the log was"
    ):
        assert_variables_on_host(caught_in_part.placement())


def test_output_still_reaches_its_streams(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    with catch_log():
        printed(ADD)
        logged(ADD)
        os.write(1, b"\xff\xfe\n")
        print("a message", file=sys.stderr)
    print("after")

    out, err = capfd.readouterr()

    assert (out.index("before"), ADD in out) == (0, True)
    assert out.endswith("after\n")
    assert (PREFIX + ADD in err, "a message" in err) == (True, True)


def test_output_still_reaches_its_streams_after_an_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    caught = catch_log()

    def fail() -> None:
        with caught:
            printed(ADD)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert capfd.readouterr().out == ADD
    assert caught.log().records == 1


def test_blocks_may_be_nested(capfd: pytest.CaptureFixture[str]) -> None:
    with catch_log() as outer:
        printed(ADD)
        with catch_log() as inner:
            printed(ADD)
        printed(ADD)

    assert (outer.log().records, inner.log().records) == (3, 1)
    assert capfd.readouterr().out == ADD * 3


def test_no_descriptor_is_left_open() -> None:
    before = open_files()
    for _ in range(5):
        with catch_log() as caught:
            printed(ADD)
        caught.log()

    assert open_files() <= before


@pytest.mark.parametrize("level", [None, "", "0", "2"])
def test_without_records_the_fix_is_named(
    monkeypatch: pytest.MonkeyPatch, level: str | None
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)

    with catch_log() as caught:
        printed("step 1\n")

    with pytest.raises(InputError) as error:
        caught.placement()
    hidden = "TF_CPP_MIN_LOG_LEVEL hides eager ops, set it to 0 before TensorFlow is imported; or "
    assert str(error.value) == (
        "the caught log has no placements; "
        + (hidden if level == "2" else "")
        + "log_device_placement was off, or switched on too late: a session needs "
        "ConfigProto(log_device_placement=True) and logs its graph at the first run, which must "
        "be inside the block; tf.debugging.set_log_device_placement(True) counts only before the "
        "first op of the process, and is ignored later"
    )


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\x1f\x8b", b"BZh", bytes(range(256)) * 99])
def test_other_output_of_a_program_is_ignored(start: bytes) -> None:
    with catch_log() as caught:
        os.write(1, start + b"\n")
        logged(ADD)

    assert caught.log().records == 1


def test_before_the_block_the_log_is_empty() -> None:
    with pytest.raises(InputError, match="nothing has been caught yet"):
        catch_log().placement()
    assert (catch_log().log().counts, catch_log().log().records) == ({}, 0)
