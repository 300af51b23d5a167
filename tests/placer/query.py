"""Query a placer process, and wait for the answer."""

from __future__ import annotations

from collections.abc import Mapping

from placement_checks.placer.worker.client import PlacerProcess, Request


def answer_of(process: PlacerProcess, request: Request) -> Mapping[str, str]:
    """The device of every placed node."""
    with process.send(request) as answer:
        return answer()
