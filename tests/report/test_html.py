from __future__ import annotations

from html.parser import HTMLParser

from reports import broken, finding, report
from rich.console import Console
from rich.text import Text

from placement_checks import Finding
from placement_checks.report import text
from placement_checks.report.console import END, FOLD, OPENED
from placement_checks.report.findings import Extent
from placement_checks.report.html import Picture, page


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


def test_the_page_has_the_report_and_the_pictures_below() -> None:
    html = page("a <title>", write, [Picture("<svg></svg>", "one & only")])

    found = read(html)
    assert html.startswith("<!DOCTYPE html>")
    assert "<title>a &lt;title&gt;</title>" in html
    assert "KEPT  a rule\n<b>{braces} & " in found.text
    assert "one & only" in found.text
    assert found.tags.index("pre") < found.tags.index("svg")


def test_what_a_report_says_is_no_markup() -> None:
    html = page("t", write, [])

    assert "b" not in read(html).tags
    assert "@title@" in read(html).text


def report_page(*findings: Finding) -> str:
    told = report(
        broken("variables-shared", *findings),
        broken("names-portable", finding("w", follows="variables-shared")),
    )
    return page("t", lambda console: text.write([told], console, Extent.FOLDED), [])


def test_what_a_report_leaves_out_is_in_folds() -> None:
    names = [f"v{number}" for number in range(9)]
    html = report_page(*(finding(name, alike="all") for name in names))

    before, first, second = html.split("<details>")
    assert "likewise 8 more, such as v1, v2, v3" in read(before).text
    summary, inside = first.split("</summary>")
    assert read(summary).text == "all 9 findings of this kind"
    assert "v7, v8" in read(inside.partition("</details>")[0]).text
    assert "names-portable: 1 finding follows from variables-shared</summary>" in second
    assert html.count("</details>") == 2


def test_of_many_groups_the_first_are_open() -> None:
    html = report_page(*(finding("w", alike=number, message=f"<{number}>") for number in range(7)))

    before, first, _ = html.split("<details>")
    assert "<3>" in read(before).text
    assert "<4>" not in read(before).text
    assert "3 findings more</summary>" in first
    assert "<6>" in read(first).text


def test_a_name_opens_no_fold() -> None:
    html = report_page(finding(f"{FOLD}w{OPENED}{END}", message=f"{FOLD}w{OPENED}\n{END}\n is"))

    assert html.count("<details>") == html.count("</details>") == 1
    assert r"\ue000w\ue001" in read(html).text
