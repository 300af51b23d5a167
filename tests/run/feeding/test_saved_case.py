"""Saved cases: they are read as they were written, and other files are refused."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuzzing import examples

from placement_checks.core import limits
from placement_checks.core.errors import InputError
from placement_checks.core.limits import Limit
from placement_checks.run.feeding import batches
from placement_checks.run.feeding.batches import Case

MANY = 10**12  # elements, none of them in the file


def member(shape: str = "(2,)", descr: str = "'<f8'", *, header: str | None = None) -> bytes:
    """A ``.npy`` file of 16 bytes, whatever its header declares."""
    if header is None:
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + bytes(16)


def archive(name: str = "0/x.npy", content: bytes | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("0/y.npy", member())
        opened.writestr(name, member() if content is None else content, **options)
    return file.getvalue()


class Harmful:
    """What a pickle may do."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harmed"),))


def save(file: str | io.BytesIO, arrays: dict[str, Any]) -> None:
    np.savez(file, **arrays)


def pickled() -> bytes:
    file = io.BytesIO()
    save(file, {"0/x": np.array([Harmful()], dtype=object)})
    return file.getvalue()


NO_CASES = {
    "empty": (b"", "File is not a zip file"),
    "cut short": (archive()[:-40], "File is not a zip file"),
    "one array": (member(), "File is not a zip file"),
    "altered": (archive().replace(bytes(16), bytes(15) + b"\1"), "Bad CRC-32 for file '0/y.npy'"),
    "a pickle": (pickled(), "'0/x.npy' has the dtype object"),
    "compressed": (archive(compress_type=zipfile.ZIP_DEFLATED), "'0/x.npy' is compressed"),
    "another name": (archive("x.npy"), "'x.npy' is not an array of a case"),
    "a path": (archive("../../x.npy"), "'../../x.npy' is not an array of a case"),
    "a text": (archive("0/x.txt"), "'0/x.txt' is not an array of a case"),
    "no array": (archive(content=b"text"), "EOF: reading magic string, expected 8 bytes got 4"),
    "no header": (archive(content=member(header="{")), "('EOF in multi-line statement', (2, 0))"),
    "records": (archive(content=member(descr="[('a', '<f8')]")), "has the dtype [('a', '<f8')]"),
    "too long": (archive(content=member(f"({MANY},)")), f"does not hold the shape ({MANY},)"),
    "too short": (archive(content=member("(1,)")), "does not hold the shape (1,)"),
    "negative": (archive(content=member("(-2,)")), "does not hold the shape (-2,)"),
    "nothing, often": (
        archive(content=member(f"({MANY}, 0)")[:-16]),
        f"does not hold the shape ({MANY}, 0)",
    ),
    "more than the file": (
        archive().replace(struct.pack("<I", len(member())), struct.pack("<I", 1 << 31)),
        "it declares more bytes than it holds",
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", NO_CASES)
def test_a_file_that_is_not_a_case_is_refused(kind: str) -> None:
    content, reason = NO_CASES[kind]
    Path("no.npz").write_bytes(content)

    with pytest.raises(InputError) as error:
        Case.load(Path("no.npz"))

    assert error.value.object == "no.npz"
    assert error.value.message.startswith("is not a saved case: ")
    assert error.value.message.endswith(reason)
    assert error.value.fix == "name the .npz file that a failed comparison saved"
    assert not Path("harmed").exists()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.exists, "there is no such file"),
        (Path.mkdir, "it is a directory"),
        (os.mkfifo, "there is no such file"),
        (lambda path: path.symlink_to(path), "its symbolic links form a loop"),
        (lambda path: path.symlink_to("/dev/zero"), "there is no such file"),
    ],
    ids=["nothing", "folder", "pipe", "loop", "device"],
)
def test_a_path_that_is_not_a_file_is_refused(make: Any, reason: str) -> None:
    make(Path("no.npz"))

    with pytest.raises(InputError, match=f"is not a saved case: {reason}"):
        Case.load(Path("no.npz"))


def test_a_case_without_a_batch() -> None:
    save("no.npz", {"start/w": np.ones(3)})

    with pytest.raises(InputError, match="holds no batch"):
        Case.load(Path("no.npz"))


def test_a_saved_case_is_read_back() -> None:
    batch: dict[str, Any] = {
        "x": np.arange(6.0).reshape(3, 2),
        "turned": np.arange(6).reshape(2, 3).T,
        "half": np.array([1, 2, 3], ml_dtypes.bfloat16),
        "words": np.array(["a", "bc", ""], dtype=object),
        "rate": np.float32(0.5),
        "none": np.zeros((3, 0), np.int32),
    }
    start: dict[str, Any] = {
        "scope/w": np.array([True]),
        "names": np.array([b"a", b"b"], dtype=object),
    }

    case = Case.load(Case([batch, batch], start).save("train.py:build"))

    assert len(case.batches) == 2
    for read, written in zip([*case.batches, case.start], [batch, batch, start], strict=True):
        assert {name: value.tolist() for name, value in read.items()} == {
            name: value.tolist() for name, value in written.items()
        }


def test_initial_values_must_fit_the_program() -> None:
    case = Case([], {"w": np.ones(3)}, "saved.npz")

    assert case.initial_values({"w": np.zeros(3)}) == case.start
    with pytest.raises(InputError) as lacking:
        case.initial_values({"v": np.zeros(2)})
    with pytest.raises(InputError) as other:
        case.initial_values({"w": np.zeros((3, 1))})

    assert lacking.value.object == "saved.npz"
    assert lacking.value.message == (
        "'v' needs an initial value of shape (2,), but the case has none"
    )
    assert other.value.message == (
        "'w' needs an initial value of shape (3, 1), but the case has one of shape (3,)"
    )


def test_shared_arrays_are_saved_once() -> None:
    """Slots of zeros, which need more space than the weights."""
    zeros = np.broadcast_to(np.float32(0), (1000, 1000))
    start = {"w": np.arange(4.0), "w/Adam": zeros, "step": np.array(7)}

    path = Case([{"x": np.ones(2)}], start).save("train.py:build")

    assert path.stat().st_size < 3000
    first = Case.load(path).initial_values({**start, "w/Adam": np.ones((1000, 1000), np.float32)})
    assert all(np.array_equal(first[name], value) for name, value in start.items())
    assert first["w/Adam"].dtype == np.float32


def test_each_program_and_directory_has_one_saved_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case([{"x": np.ones(2)}], {})
    monkeypatch.setenv("HOME", str(tmp_path))
    for home, cache in ((str(tmp_path / "x"), "x"), ("relative", ".cache"), ("", ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert case.save("train.py:build").parent == tmp_path / cache / "placement_checks"

    first = case.save("train.py:build")
    assert case.save("train.py:build") == first
    assert case.save("train.py:other") != first
    assert case.save("a/train.py:build").name.startswith("train.py_build-")
    assert case.save("a/train.py:build") != case.save("b/train.py:build")
    whole = case.save("a/train.py --dir=/data/train --num_gpus={gpus}")
    assert whole.name.startswith("train.py-")
    assert whole != case.save("a/train.py --dir=/data/train")
    monkeypatch.chdir("/")
    elsewhere = case.save("train.py:build")

    assert elsewhere != first
    assert elsewhere.name.startswith("train.py_build-")
    assert {path.suffix for path in first.parent.iterdir()} == {".npz"}
    assert len(case.save("p" * 1000).name) < 255


@pytest.mark.parametrize(("most", "room", "left"), [(3, 10**9, 3), (32, 2500, 3), (32, 0, 1)])
def test_the_oldest_cases_are_deleted(
    most: int, room: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(batches, "_MAX_FILES", most)
    monkeypatch.setattr(batches, "_MAX_BYTES", room)
    case = Case([{"x": np.zeros(100)}], {})
    paths = []
    for number in range(5):
        paths.append(case.save(f"program {number}"))
        os.utime(paths[-1], (number, number))
    again = case.save("program 4")
    other = again.with_name("notes.txt")
    other.touch()

    assert 1000 < again.stat().st_size < 1250
    assert {path for path in paths if path.is_file()} == set(paths[-left:])
    assert again == paths[-1]
    assert other.exists()


def saved() -> bytes:
    file = io.BytesIO()
    save(file, {"start/w": np.ones(3), "0/x": np.ones((4, 2)), "1/x": np.array(["a"])})
    return file.getvalue()


SAVED = saved()


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_damaged_case_is_an_error_with_the_file_name(data: st.DataObject) -> None:
    content = bytearray(SAVED)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(SAVED) - 1))] = data.draw(st.integers(0, 255))
    Path("no.npz").write_bytes(content[: data.draw(st.integers(len(SAVED) // 2, len(SAVED)))])

    with suppress(InputError):
        case = Case.load(Path("no.npz"))
        assert sum(array.nbytes for batch in case.batches for array in batch.values()) < len(SAVED)


def test_the_number_of_arrays_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CASE_ARRAYS", Limit(2, "arrays of a saved case"))
    Path("no.npz").write_bytes(SAVED)

    with pytest.raises(InputError, match="exceeds the limit of 2 arrays of a saved case"):
        Case.load(Path("no.npz"))
