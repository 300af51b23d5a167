"""``python -m tools.package_page DIST`` checks the page that an index shows for the package.

The page is the README, in the metadata of the wheel in the directory DIST. Every link must lead to
a file of the sdist and to an existing heading. An index does not show files of the sdist. So in a
release, unlike in a version such as 0.1.0.dev0, every link must have an address, and the metadata
must name the project's address.
"""

from __future__ import annotations

import email
import posixpath
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from email.message import Message
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt


def faults(dist: Path) -> Iterator[str]:
    """The faults of the package in a directory with one wheel and one sdist, one line each."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    metadata, files = _metadata(wheel), _files(sdist)
    is_release = not re.search(r"\.dev\d+$", metadata["Version"])
    for field in ("Author", "License-Expression", "Requires-Python", "Summary"):
        if not (metadata[field] or metadata[f"{field}-email"]):
            yield f"metadata: has no {field}"
    if is_release and not metadata.get_all("Project-URL"):
        yield "metadata: has no Project-URL; set [project.urls] in pyproject.toml"
    pages = {name: text for name, text in files.items() if name.endswith(".md")}
    readme = metadata.get_payload(decode=True)
    assert isinstance(readme, bytes), "it has no parts"
    pages[""] = readme
    for link in links(pages[""].decode()):
        to = urlsplit(link)
        if to.scheme:
            continue
        name = posixpath.normpath(to.path) if to.path else ""
        if is_release and name:
            yield f"README.md: {link} has no address, so it leads nowhere on an index"
        elif name and not any(file == name or file.startswith(f"{name}/") for file in files):
            yield f"README.md: {link} is not in the sdist"
        elif to.fragment and to.fragment not in headings(pages[name].decode()):
            yield f"README.md: {link} has no such heading"


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def _files(sdist: Path) -> Mapping[str, bytes]:
    """The files, by their path in the project; only pages have their content."""
    with tarfile.open(sdist) as archive:
        return {
            member.name.partition("/")[2]: (
                archive.extractfile(member).read()  # type: ignore[union-attr]
                if member.name.endswith(".md")
                else b""
            )
            for member in archive.getmembers()
            if member.isfile()
        }


def links(page: str) -> Iterator[str]:
    """The addresses of links and pictures."""
    for block in MarkdownIt("gfm-like", {"linkify": False}).parse(page):
        for token in block.children or ():
            address = token.attrGet("href") or token.attrGet("src")
            if address is not None:
                yield str(address)


def headings(page: str) -> frozenset[str]:
    """The anchors of the headings, in the form of code hosts."""
    tokens = MarkdownIt().parse(page)
    texts = (
        text.content.lower()
        for heading, text in pairwise(tokens)
        if heading.type == "heading_open"
    )
    return frozenset(re.sub(r"[^\w -]", "", text).replace(" ", "-") for text in texts)


def main() -> None:
    """Print the faults. The exit status is 1 if there are any."""
    found = list(faults(Path(sys.argv[1])))
    print("\n".join(found) or "the page of the package is complete")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
