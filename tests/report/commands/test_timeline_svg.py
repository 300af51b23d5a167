from __future__ import annotations

import json
from xml.etree import ElementTree

from support.timings import STEP, timeline

from placement_checks.core.trace import Timeline, Trace
from placement_checks.report.commands.time import chrome_trace, lanes_svg, step_picture

SVG = "{http://www.w3.org/2000/svg}"


def parts(svg: str, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}{kind}"))


def titles(svg: str) -> list[str]:
    return [element.findtext(f"{SVG}title") or "" for element in parts(svg, "rect")]


def test_every_device_has_a_lane_and_every_op_its_time() -> None:
    svg = lanes_svg(STEP, "a step")

    texts = [element.text for element in parts(svg, "text")]
    assert [text for text in texts if text and "PU" in text] == ["CPU:0", "GPU:0", "GPU:1"]
    assert titles(svg) == [
        "read: 1 ms",
        "update: 1 ms",
        "tower_0/conv: 7 ms",
        "tower_1/conv: 8 ms",
    ]


def test_the_width_of_an_op_is_its_duration() -> None:
    one, other = (
        float(element.attrib["width"]) for element in parts(lanes_svg(STEP, ""), "rect")[2:]
    )

    assert abs(one / other - 7 / 8) < 0.001


def test_the_axis_has_round_steps() -> None:
    texts = [element.text for element in parts(lanes_svg(STEP, ""), "text")]

    assert texts[:6] == ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms"]


def test_short_ops_are_drawn_together() -> None:
    short = [(f"op{number}", 1 + number * 1e-6, 1 + (number + 1) * 1e-6) for number in range(50)]
    step = timeline({"/gpu:0": [("long", 0.0, 1.0), *short, ("last", 1.5, 2.0)]})

    assert titles(lanes_svg(step, "")) == [
        "long: 1000 ms",
        "50 ops, op0 the first: 0.05 ms",
        "last: 500 ms",
    ]


def test_names_are_escaped() -> None:
    step = timeline({"/gpu:0": [('<script>&"', 0.0, 1.0)]})

    assert titles(lanes_svg(step, "<b>")) == ['<script>&": 1000 ms']


def test_an_empty_step() -> None:
    assert titles(lanes_svg(Timeline({}), "")) == []


def test_the_fastest_step_is_drawn() -> None:
    slow = timeline({"/gpu:0": [("slow", 0.0, 1.0)]})

    svg, caption = step_picture(Trace(512, [slow, STEP], []), "train.py:build")

    assert "read: 1 ms" in titles(svg)
    assert caption == "The fastest of 2 traced steps of train.py:build, 512 rows"


def test_a_chrome_trace_has_a_process_for_each_device() -> None:
    events = json.loads(chrome_trace(STEP, "train.py:build"))["traceEvents"]

    named = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert list(named.values()) == [
        "train.py:build /device:CPU:0",
        "train.py:build /device:GPU:0",
        "train.py:build /device:GPU:1",
    ]
    (conv,) = [event for event in events if event.get("name") == "tower_1/conv"]
    assert named[conv["pid"]].endswith("GPU:1")
    assert (conv["ph"], conv["ts"], conv["dur"]) == ("X", 1000.0, 8000.0)
    assert len(events) == 3 + 4
