"""Watches code of a test until its first training step."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from placement_checks.core.errors import InputError
from placement_checks.core.gpus import checked_gpus
from placement_checks.core.missing import Missing
from placement_checks.core.program import Program, Step, WatchedCode
from placement_checks.loading.building import in_new_graph, of_live_graph
from placement_checks.loading.sessions import Stopped
from placement_checks.loading.source_lines import users_frames


@contextlib.contextmanager
def watch(gpus: int = 2, *, name: str = "") -> Iterator[WatchedCode]:
    """Watch the code in this block until its first training step, and end the block there.

    What the block yields is a target when it has ended: ``place(watched)``.

    Args:
        gpus: how many GPUs it finds, by whatever call it asks.
        name: what it is called in reports; by default where the block is.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256.
        InputError: it built nothing, or its graph is larger than 2 GB.
    """
    checked_gpus(gpus)
    code = WatchedCode(name or _place_of_block())
    program = Program(code.name, lambda: None)
    with in_new_graph(program, gpus) as (building, graph_of):
        with contextlib.suppress(Stopped):
            yield code
        if building.watch.steps:
            built = building.trained()
        else:
            built = building.built(graph_of(None), Step())
    if not built.source.graph_def.node:
        raise InputError(
            code.name, "built no graph", "call the function that trains within the block"
        )
    reason = Missing("the code of a block cannot be run for one GPU", "place a function")
    code.built = of_live_graph(program, gpus, built, lambda _: reason)


def _place_of_block() -> str:
    """The line of the block, which is the user's innermost."""
    frames = users_frames(traceback.extract_stack(), None)
    return str(frames[-1]) if frames else "the code of the block"
