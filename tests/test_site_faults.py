"""Faults of the built documentation are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_faults import faults

SOUND = '<link rel="stylesheet" href="_static/a.css"><h1 id="top-1">A</h1><a href="b.html#b">b</a>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(SOUND)
    (tmp_path / "b.html").write_text('<h2 id="b">B</h2><a href="https://example.com">away</a>')
    return tmp_path


def test_sound_pages_have_no_faults(folder: Path) -> None:
    assert list(faults(folder)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="c.html">c</a>', "b.html: c.html leads nowhere"),
        ('<a href="index.html#gone">a</a>', "b.html: index.html#gone has no such heading"),
        ('<a href="#gone">a</a>', "b.html: #gone has no such heading"),
        (
            '<script src="//cdn/x.js"></script>',
            "b.html: //cdn/x.js is asked of a network",
        ),
        (
            '<link rel="icon" href="//cdn/x.css">',
            "b.html: //cdn/x.css is asked of a network",
        ),
    ],
)
def test_a_fault_is_reported(folder: Path, text: str, fault: str) -> None:
    (folder / "b.html").write_text(f'<p id="b">{text}</p>')

    assert list(faults(folder)) == [fault]


def test_a_folder_without_pages_is_a_fault(tmp_path: Path) -> None:
    assert [fault.rpartition(": ")[2] for fault in faults(tmp_path)] == ["has no pages"]
