"""The CPU time of a browser for pages of large programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.pictures import data_of
from support.towers import program

pytestmark = pytest.mark.nightly

Opened = Callable[..., Any]


@pytest.mark.parametrize(("layers", "ops", "seconds"), [(630, 10_000, 0.5), (2500, 40_000, 2.0)])
def test_large_programs_are_drawn_quickly(
    opened: Opened, tab: Any, layers: int, ops: int, seconds: float
) -> None:
    names = [f"block{n // 100}/layer{n // 2}/w{n}" for n in range(layers)]
    graph = program(gpus=range(4), variables=names)
    data = data_of(graph)
    assert len(graph.ops) >= ops
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    page = opened(data)

    metrics = {
        each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]
    }
    session.detach()
    assert page.locator("#lanes [role=row]").count() > 5
    assert 0 < metrics["TaskDuration"] < seconds
