from __future__ import annotations

from html.parser import HTMLParser

from rich.console import Console
from rich.text import Text

from placement_checks.report.commands.time import Picture, page


class Reader(HTMLParser):
    """The text of a page, and the tags that were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        self.tags.append(tag)


def read(html: str) -> Reader:
    parser = Reader()
    parser.feed(html)
    return parser


def write(console: Console) -> None:
    console.print(Text("KEPT  a rule", "green"), Text("<b>{braces} & @title@"), sep="\n")


def test_the_page_has_report_and_pictures() -> None:
    html = page("a <title>", write, [Picture("<svg></svg>", "one & only")])

    found = read(html)
    assert html.startswith("<!DOCTYPE html>")
    assert "<title>a &lt;title&gt;</title>" in html
    assert "KEPT  a rule\n<b>{braces} & " in found.text
    assert "one & only" in found.text
    assert found.tags.index("pre") < found.tags.index("svg")


def test_text_of_a_report_is_escaped() -> None:
    html = page("t", write, [])

    assert "b" not in read(html).tags
    assert "@title@" in read(html).text
