"""``placement-checks place --tensorboard``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.util.text import plural


def write_for_tensorboard(evidence: Evidence, folder: str) -> Iterator[str]:
    """Write the event file, and say what to do with it.

    Raises:
        InputError: there is no graph.
        UsageError: the folder cannot be written.
    """
    placement = evidence.placement
    if not evidence.program:
        raise InputError(
            placement.program,
            "is a placement log, which has no graph",
            "name the program that printed it",
        )
    from placement_checks.graph.event_files import write_event_file

    graph_def = evidence.program.graph_def
    try:
        file = write_event_file(Path(folder), placement.program, graph_def, placement.ops)
    except OSError as reason:
        why = reason.strerror or "cannot be written"
        raise UsageError(
            f"--tensorboard {folder}", why, "name a folder that can be written"
        ) from None
    devices = {op.assigned for op in placement.ops.values() if op.assigned}
    yield f"{file}: {plural(len(placement.ops), 'op')} on {plural(len(devices), 'device')}"
    yield f"tensorboard --logdir {shlex.quote(folder)}"
