"""Renders the copies of one step by pairs of devices, by layer and by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from placement_checks.analysis.step.transfers import (
    PHASES,
    CopiedTensor,
    Phase,
    SentTensor,
    TransferTotal,
    by_layer,
    transfers,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.report.common.json import versioned_json
from placement_checks.report.text.layout import shorten
from placement_checks.util.text import align_columns

_LAYERS = 16  # rows of the table; with the pairs of devices they fill a screen
_MAX_NAME = 40  # characters of a layer's name
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def render_text(placement: Placement, all_sent: Sequence[SentTensor]) -> Iterator[str]:
    """Yields a line for each pair of devices, and a table of the layers that send most."""
    yield from map(str, transfers(each.copied for each in all_sent))
    yield from _table(placement, all_sent)


def render_json(placement: Placement, all_sent: Sequence[SentTensor]) -> Sequence[str]:
    """Returns the lines of the JSON document with each copy."""
    document = {
        "program": placement.program,
        "machine": str(placement.machine) if placement.machine else None,
        "placer": placement.placer,
        "pairs": [
            {"from": str(source), "to": str(to), "copies": copies, "bytes": size, "unknown": open}
            for source, to, copies, size, open in transfers(each.copied for each in all_sent)
        ],
        "layers": [
            {
                "layer": each.layer or None,
                **each.total._asdict(),
                "phases": [
                    {"phase": phase, **total._asdict()} for phase, total in each.phases.items()
                ],
                "where": _line(placement, each.largest),
            }
            for each in by_layer(all_sent)
        ],
        "copies": [_copy(placement, each) for each in all_sent],
    }
    return versioned_json(document, schema=1).split("\n")


def _copy(placement: Placement, each: SentTensor) -> dict[str, Any]:
    copied = each.copied
    return {
        "tensor": copied.tensor,
        "from": str(copied.source),
        "to": str(copied.to),
        "bytes": copied.bytes,
        "phase": each.phase,
        "layer": each.layer or None,
        "variable": each.variable or None,
        "tower": each.tower,
        "taken_by": copied.taker,
        "where": _line(placement, copied),
    }


def _line(placement: Placement, copied: CopiedTensor) -> str | None:
    """The user's line that built the producer of a copied tensor, or else the consumer."""
    return placement.where(producer_of(copied.tensor)) or placement.where(copied.taker)


def _table(placement: Placement, all_sent: Sequence[SentTensor]) -> Iterator[str]:
    layers = by_layer(all_sent)
    if not layers:
        return
    shown, others = layers[:_LAYERS], layers[_LAYERS:]
    phases = [phase for phase in PHASES if any(phase in each.phases for each in layers)]
    rows = [["layer", *phases, "largest sent at"]]
    rows += [
        [
            shorten(each.layer or "no layer", _MAX_NAME),
            *(_cell(each.phases.get(phase, TransferTotal())) for phase in phases),
            _line(placement, each.largest) or "",
        ]
        for each in shown
    ]
    if others:
        names = {each.layer for each in others}
        rest = [each for each in all_sent if each.layer in names]
        more = f"{len(others):,} more layers"
        rows.append([more, *_cells(rest, phases), "--format json has them"])
    if len(layers) > 1:
        rows.append(["all", *_cells(all_sent, phases), ""])
    yield ""
    yield from align_columns(rows)
    if any(each.total.unknown for each in layers):
        yield "? and ≥: some sizes are unknown; --rows N sets the number of rows of the batch"


def _cells(all_sent: Sequence[SentTensor], phases: Sequence[Phase]) -> list[str]:
    return [
        _cell(TransferTotal.from_copies(each.copied for each in all_sent if each.phase == phase))
        for phase in phases
    ]


def _cell(total: TransferTotal) -> str:
    if not total.copies:
        return ""
    if total.unknown == total.copies:
        return f"? in {total.copies:,}"
    least = "≥" if total.unknown else ""
    size = next((f"{total.bytes / n:.1f} {unit}" for n, unit in _UNITS if total.bytes >= n), None)
    return f"{least}{size or f'{total.bytes} B'} in {total.copies:,}"
