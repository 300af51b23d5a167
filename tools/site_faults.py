"""``python -m tools.site_faults FOLDER`` checks the built documentation.

Every link within it must lead to an existing page and heading. Pages must load nothing from a
network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHED = {"script": "src", "img": "src", "iframe": "src"}  # loaded by a browser automatically


class _Page(HTMLParser):
    """The anchors of a page, its links, and the files that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = {"", "top"}
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload"}:
            self.fetched.append(given["href"])
        if tag in _FETCHED and _FETCHED[tag] in given:
            self.fetched.append(given[_FETCHED[tag]])


def faults(folder: Path) -> Iterator[str]:
    """The faults of the pages in a directory, one line each."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    if not pages:
        yield f"{folder}: has no pages"
    for path, page in pages.items():
        name = path.relative_to(folder)
        for address in page.fetched:
            if urlsplit(address).netloc:
                yield f"{name}: {address} is asked of a network"
        for address in page.links:
            to = urlsplit(address)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            if not target.exists():
                yield f"{name}: {address} leads nowhere"
            elif target in pages and unquote(to.fragment) not in pages[target].names:
                yield f"{name}: {address} has no such heading"


def main() -> None:
    """Print the faults. The exit status is 1 if there are any."""
    found = sorted(faults(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "all links lead somewhere, and nothing is asked of a network")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
