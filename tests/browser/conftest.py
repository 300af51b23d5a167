"""A browser for the pages: Debian's Chromium, started once for each module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from placement_checks.core.results import NextStep
from placement_checks.report.page.write import render_page as html_page

CHROMIUM = Path("/usr/bin/chromium")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)

# Opens the page of some programs in the browser.
Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    """A tab that records the errors and requests of its pages in `complaints` and `requests`."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=_FLAGS)
        tab = chromium.new_page()
        tab.complaints, tab.requests = [], []
        tab.on("pageerror", lambda error: tab.complaints.append(error.message))
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.on("request", lambda request: tab.requests.append(request.url))
        yield tab
        chromium.close()


@pytest.fixture
def opened(tab: Any, tmp_path: Path) -> Iterator[Opened]:
    """Opens a page. Fails if its script raises an error or requests anything."""
    file = tmp_path / "page.html"

    def open_page(
        *programs: Mapping[str, Any], width: int = 1400, scheme: str = "light", next: str = ""
    ) -> Any:
        file.write_text(html_page(programs, NextStep(next)), encoding="utf-8")
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme, media="screen")
        tab.goto(file.as_uri())
        tab.wait_for_selector("body[data-state]")
        return tab

    tab.complaints.clear()
    tab.requests.clear()
    yield open_page
    assert not tab.complaints
    assert tab.requests == [file.as_uri()]
