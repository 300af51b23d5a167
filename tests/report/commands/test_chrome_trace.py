from __future__ import annotations

import json

from support.timings import STEP

from placement_checks.report.commands.time import chrome_trace


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
