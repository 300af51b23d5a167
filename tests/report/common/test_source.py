from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from placement_checks.report.common.source import source_text


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str | bytes, *, old: bool = True) -> str:
    """A file that was written before this process began, or now."""
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    if old:
        os.utime(name, (1, 1))
    return name


def test_the_text_of_a_line() -> None:
    lines = ["import x", "    with (", "        f(1),", "        g,", "    ):", "        x = ["]
    write("train.py", "\n".join(lines))

    assert source_text("train.py:1") == "import x"
    assert source_text("train.py:2") == "with (f(1), g, ):"
    assert source_text("train.py:3") == "f(1),"
    assert source_text("train.py:6") == "x = ["
    assert source_text(f"{Path.cwd()}/train.py:1") == "import x"


@pytest.mark.parametrize("line", ["train.py:3", "train.py:5", "train.py:0", "train.py:-1"])
def test_empty_and_missing_lines(line: str) -> None:
    write("train.py", "a\nb\n\nd\n")
    assert source_text(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "<ipython-input-3-0a1b>:1",
        "<string>:1",
        "nowhere.py:1",
        "folder:1",
        "package.zip/train.py:1",
        "train.py",
        "train.py:x",
        "a\0b.py:1",
    ],
)
def test_an_unreadable_file_has_no_text(line: str) -> None:
    write("train.py", "a\n")
    Path("folder").mkdir()
    with zipfile.ZipFile("package.zip", "w") as archive:
        archive.writestr("train.py", "a\n")

    assert source_text(line) is None


def test_a_pipe_is_not_waited_for() -> None:
    os.mkfifo("pipe.py")
    assert source_text("pipe.py:1") is None


def test_the_declared_encoding_applies() -> None:
    write("latin.py", "# coding: latin-1\nname = 'ü'\n".encode("latin-1"))
    write("broken.py", b"name = '\xff'\n")
    write("no_codec.py", "# coding: nothing\na\n")

    assert source_text("latin.py:2") == "name = 'ü'"
    assert source_text("broken.py:1") is None
    assert source_text("no_codec.py:2") is None


def test_a_long_line_is_cut() -> None:
    write("train.py", f"{'x' * 100}\n{'y' * 101}\n")

    assert source_text("train.py:1") == "x" * 100
    assert source_text("train.py:2") == "y" * 99 + "…"


def test_a_file_written_since_the_start_is_read_again_with_a_note() -> None:
    write("train.py", "before\n")
    assert source_text("train.py:1") == "before"

    write("train.py", "after\n", old=False)
    assert source_text("train.py:1") == "after  (the file has changed since)"


def test_two_files_of_one_name_in_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("train.py", "one\n")
    assert source_text("train.py:1") == "one"

    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    write("train.py", "two\n")
    assert source_text("train.py:1") == "two"
