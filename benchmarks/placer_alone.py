"""``python placer_alone.py GRAPH…`` places graphs, and prints the cost of the placer process.

The output is JSON: ``cpu`` in seconds; ``peak``, the largest memory in GB; ``held``, the memory in
GB after the last answer; ``ops``, the number of placed ops of each graph. The process that infers
the shapes of a saved graph is not included.
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

    ops = [len(place(graph).ops) for graph in graphs]
    print(json.dumps({"ops": ops, **_took()}))


def _took() -> dict[str, Any]:
    """The cost of the placer process so far. It must have answered all requests."""
    from placement_checks.placer.worker.client import phantom

    process = psutil.Process(phantom.pid)
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return {
        "cpu": sum(process.cpu_times()[:4]),  # with the time of its children
        "peak": int(peak) * 1024 / 1e9,
        "held": process.memory_info().rss / 1e9,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
