"""Names of a graph or a log are shown as text, and cause no requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.graphs import op
from support.pictures import data_of
from support.reports import broken, finding
from support.timings import timeline
from support.towers import program, variable

from placement_checks.core.evidence import Evidence
from placement_checks.core.trace import Trace

pytestmark = pytest.mark.nightly

Opened = Callable[..., Any]

HOSTILE = (
    "</script><script>document.title='gone'</script>"
    "<img src=//example.com/x onerror=\"document.title='gone'\">"
    "<!-- ]]> &lt; \u2028 ' \" ${x} @data@ <style>@import url(//example.com/y)</style>"
)


def test_hostile_names_have_no_effect(opened: Opened) -> None:
    graph = program(
        variable(f"{HOSTILE}/w"),
        op(HOSTILE, "MatMul" + HOSTILE, "/gpu:0", "GPU:0", "tower_0/x", f"{HOSTILE}/w"),
        op("tower_0/loss", "Mean", "/gpu:0", "GPU:0", HOSTILE, "tower_0/w/MatMul"),
        program=HOSTILE,
        lines={HOSTILE: "a<b>.py:3"},
    )
    trace = Trace(8, [timeline({"/gpu:0": [(HOSTILE, 0.0, 1.0)]})], [])
    found = finding(HOSTILE, message=HOSTILE, fix=HOSTILE, path=(HOSTILE,), consequence=HOSTILE)
    data = data_of(Evidence(graph, trace=trace), broken(HOSTILE, found))

    page = opened(data, data, next=HOSTILE)
    for selector in (".finding .rule", "#lanes .forward", "#rules button"):
        page.locator(selector).first.click()
    page.locator("[data-opens]").last.click()
    page.get_by_role("searchbox").fill("example.com")
    page.locator("#details h2", has_text="found").wait_for()

    scripts = page.evaluate("document.scripts.length")
    assert scripts == 4  # the overview, two programs, and ours
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.querySelectorAll('style').length") == 1
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(each => [...each.attributes].every("
        "({name}) => !name.startsWith('on') && name !== 'src' && name !== 'href'))"
    )
    shown = HOSTILE.replace("\u2028", "\\u2028")
    assert page.title() == f"{shown}: device placement"
    assert page.locator("#program").inner_text() == shown
    assert shown in page.locator("#details").inner_text()


def test_the_content_policy_blocks_foreign_code(opened: Opened) -> None:
    page = opened(data_of(program()))

    ran = page.evaluate(
        "(() => { const made = document.createElement('script');"
        " made.textContent = 'window.ran = true';"
        " document.body.append(made); return window.ran === true; })()"
    )

    assert not ran
    (complaint,) = page.complaints
    assert "Content Security Policy" in complaint
    page.complaints.clear()
