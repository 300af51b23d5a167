from __future__ import annotations

import base64
import hashlib
import re
import time
from html.parser import HTMLParser

import pytest
from support.pictures import data_of, embedded
from support.reports import broken, finding
from support.towers import program

from placement_checks import Verdict
from placement_checks.core.results import NextStep
from placement_checks.report.page.write import render_page

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> & <!-- \u2028 ' \" @data@"
)


class Reader(HTMLParser):
    """The elements of a page and their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes


def test_the_page_loads_nothing() -> None:
    html = render_page([data_of(program())])

    read = Reader(html)
    assert html.startswith("<!DOCTYPE html>")
    assert not {name for name, _ in read.attributes} & {"src", "href", "action", "srcset"}
    assert "url(" not in html
    assert re.findall(r"https?://[\w./]+", html) == ["http://www.w3.org/2000/svg"]


def test_the_content_policy_allows_only_this_script() -> None:
    html = render_page([data_of(program())])

    policy = next(text for _, text in Reader(html).attributes if text and "default-src" in text)
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; ")
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_names_that_look_like_markup_are_data() -> None:
    graph = program(program=HOSTILE)
    plain = Reader(render_page([data_of(program())])).tags

    html = render_page(
        [data_of(graph, broken(HOSTILE, finding(HOSTILE, message=HOSTILE)))], NextStep(HOSTILE)
    )

    assert Reader(html).tags == plain
    (data,) = embedded(html)
    assert data["findings"][0]["message"] == HOSTILE.replace("\u2028", "\\u2028")
    assert data["program"] == HOSTILE.replace("\u2028", "\\u2028")


def test_unprintable_characters_are_escaped() -> None:
    html = render_page([data_of(program(program="a\x1b[31m\udcffb\u202e"))])

    assert html.encode()
    assert embedded(html)[0]["program"] == "a\\x1b[31m\\udcffb\\u202e"


def test_several_programs_have_an_overview_of_their_rules() -> None:
    kept, both = Verdict("a", "kept", "assigned"), broken("b", finding("w"), finding("step"))

    html = render_page([data_of(program(), kept), data_of(program(), kept, both)])

    assert len(embedded(html)) == 2
    (overview,) = embedded(html, 'id="overview"')
    assert overview["rules"] == ["a", "b"]
    assert [each["cells"] for each in overview["programs"]] == [
        [["kept", 0], ["", 0]],
        [["kept", 0], ["broken", 2]],
    ]


def test_equal_data_make_equal_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    html = render_page([data_of(program())])
    monkeypatch.setattr(time, "time", lambda: 2e9)

    assert render_page([data_of(program())]) == html


@pytest.mark.parametrize("step", [None, "next: edit train.py:3 & more"])
def test_the_next_step_is_below_the_headline(step: str | None) -> None:
    html = render_page([data_of(program())], NextStep(step or ""))

    assert f'<p id="next">{(step or "").replace("&", "&amp;")}</p>' in html
