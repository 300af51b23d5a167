"""Places graphs, ``python placer_alone.py GRAPH…``, and prints what the placer's process took.

As JSON: ``cpu``, in seconds, and ``peak`` and ``held``, its memory in GB at most and after the
last answer; ``ops`` is how many were placed of each.
"""

from __future__ import annotations

import atexit
import json
import resource
import sys
from collections.abc import Sequence
from typing import Any

import psutil


def main(graphs: Sequence[str]) -> None:
    took: dict[str, Any] = {}
    # What is registered first is called last: when the placer's process has ended.
    atexit.register(_show, took)
    from placement_checks import place

    took["ops"] = [len(place(graph, devices="simulated").ops) for graph in graphs]
    children = psutil.Process().children()
    took["held"] = sum(child.memory_info().rss for child in children) / 1e9


def _show(took: dict[str, Any]) -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took |= {"cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss * 1024 / 1e9}
    print(json.dumps(took))


if __name__ == "__main__":
    main(sys.argv[1:])
