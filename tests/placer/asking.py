"""Asks a placer process without doing anything else meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from placement_checks.placer.worker.client import PlacerProcess, Request


def answer_of(process: PlacerProcess, request: Request) -> Mapping[str, str]:
    """The device of every node that was placed."""
    with process.asked(request) as answer:
        return answer()
