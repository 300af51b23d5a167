"""Places graphs, ``python placer_alone.py GRAPH…``, and prints what the placer's process took.

As JSON: ``cpu``, in seconds, and ``peak`` and ``held``, its memory in GB at most and after the
last answer; ``ops`` is how many were placed of each. The process that infers the shapes of a saved
graph is none of it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil


def main(graphs: Sequence[str]) -> None:
    from placement_checks import place

    ops = [len(place(graph, devices="simulated").ops) for graph in graphs]
    print(json.dumps({"ops": ops, **_took()}))


def _took() -> dict[str, Any]:
    """What the placer's process took until now, which has answered all."""
    from placement_checks.placer.worker.client import phantom

    process = psutil.Process(phantom.pid)
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return {
        "cpu": sum(process.cpu_times()[:4]),  # user and system, its own and its children's
        "peak": int(peak) * 1024 / 1e9,
        "held": process.memory_info().rss / 1e9,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
