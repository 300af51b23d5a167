"""Faults of the page that an index shows for the package are found."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from package_page import faults

METADATA = """\
Metadata-Version: 2.4
Name: p
Version: {version}
Summary: A package
Author: The authors
License-Expression: MIT
Requires-Python: >=3.11
{more}
{readme}
"""
README = """\
# P

## The first, and last

[inside](#the-first-and-last) [page](docs/a.md#a-heading) [folder](docs) ![p](docs/p.png) [x](https://example.com)

```
[text](of/a/block.md)
```
"""
Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def built(readme: str = README, version: str = "0.1.0.dev0", more: str = "") -> Path:
        with zipfile.ZipFile(tmp_path / "p.whl", "w") as wheel:
            text = METADATA.format(version=version, more=more, readme=readme)
            wheel.writestr("p-0.1.dist-info/METADATA", text)
        with tarfile.open(tmp_path / "p.tar.gz", "w:gz") as sdist:
            for name, content in {"docs/a.md": b"# A heading\n", "docs/p.png": b"png"}.items():
                member = tarfile.TarInfo(f"p-0.1/{name}")
                member.size = len(content)
                sdist.addfile(member, io.BytesIO(content))
        return tmp_path

    return built


def test_a_complete_page_has_no_faults(build: Build) -> None:
    assert list(faults(build())) == []


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("docs/b.md", "README.md: docs/b.md is not in the sdist"),
        ("docs/a.md#gone", "README.md: docs/a.md#gone has no such heading"),
        ("#gone", "README.md: #gone has no such heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_a_fault(build: Build, link: str, fault: str) -> None:
    assert list(faults(build(f"{README}[x]({link})"))) == [fault]


def test_a_release_needs_addresses(build: Build) -> None:
    assert list(faults(build(version="0.1.0"))) == [
        "metadata: has no Project-URL; set [project.urls] in pyproject.toml",
        *(
            f"README.md: {link} has no address, so it leads nowhere on an index"
            for link in ("docs/a.md#a-heading", "docs", "docs/p.png")
        ),
    ]


def test_a_release_with_addresses_has_no_faults(build: Build) -> None:
    page = "# P\n\n[page](https://example.com/docs/a.md) [inside](#p)"
    source = "Project-URL: Source, https://example.com\n"

    assert list(faults(build(page, version="0.1.0", more=source))) == []


def test_missing_metadata_is_a_fault(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.METADATA", METADATA.replace("Author: The authors\n", ""))

    assert list(faults(build())) == ["metadata: has no Author"]
