"""The modules of a package are found in a directory and in a zip file, without an import."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from placement_checks.util.modules import find_modules


@pytest.mark.parametrize("is_zipped", [False, True])
def test_modules_are_found_by_their_file(
    is_zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"found_{is_zipped}".lower()
    files = ["__init__.py", "b.py", "a_c.py", "d.py", "more/__init__.py", "more/e.py"]
    for name in files:
        file = tmp_path / "plain" / package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("" if name.endswith("__init__.py") else "raise AssertionError\n")
    with ZipFile(tmp_path / "packed.zip", "w") as packed:
        for name in files:
            packed.write(tmp_path / "plain" / package / name, f"{package}/{name}")
    monkeypatch.syspath_prepend(tmp_path / ("packed.zip" if is_zipped else "plain"))

    found = find_modules(package, f"{package}.more", first="d")

    assert list(found.items()) == [
        ("d", f"{package}.d"),
        ("a-c", f"{package}.a_c"),
        ("b", f"{package}.b"),
        ("e", f"{package}.more.e"),
    ]
    assert f"{package}.b" not in sys.modules
