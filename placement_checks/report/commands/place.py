"""Renders the copies of one step by pairs of devices, by layer and by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from placement_checks.analysis.step.transfers import (
    PHASES,
    CopiedTensor,
    Phase,
    SentTensor,
    TransferTotal,
    by_layer,
    transfers,
)
from placement_checks.core.placement import Placement, Placer, producer_of
from placement_checks.report.common.json import (
    VERSION,
    Count,
    JsonObject,
    UnknownSizes,
    Versions,
    to_json,
)
from placement_checks.report.text.layout import shorten
from placement_checks.util.text import align_columns

_LAYERS = 16  # rows of the table; with the pairs of devices they fill a screen
_MAX_NAME = 40  # characters of a layer's name
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_PHASE = Meta(description="The phase of the first consumer.")


def render_text(placement: Placement, all_sent: Sequence[SentTensor]) -> Iterator[str]:
    """Yields a line for each pair of devices, and a table of the layers that send most."""
    yield from map(str, transfers(each.copied for each in all_sent))
    yield from _table(placement, all_sent)


KnownSizes = Annotated[int, Meta(ge=0, description="The sum of the known sizes.")]


class PairObject(JsonObject, rename={"source": "from"}):
    source: str
    to: str
    copies: Count
    bytes: KnownSizes
    unknown: UnknownSizes


class PhaseObject(JsonObject):
    phase: Annotated[Phase, _PHASE]
    copies: Count
    bytes: KnownSizes
    unknown: UnknownSizes


class LayerObject(JsonObject):
    layer: Annotated[
        str | None,
        Meta(description="A scope of variables; null for copies without a layer."),
    ]
    copies: Count
    bytes: KnownSizes
    unknown: UnknownSizes
    phases: list[PhaseObject]
    where: Annotated[
        str | None, Meta(description="The line that built the largest copied tensor.")
    ]


class CopyObject(JsonObject, rename={"source": "from"}):
    tensor: str
    source: str
    to: str
    bytes: Count | None
    phase: Annotated[Phase, _PHASE]
    layer: str | None
    variable: str | None
    tower: Count | None
    taken_by: Annotated[str, Meta(description="The first consumer on the destination device.")]
    where: str | None


class PlaceDocument(JsonObject):
    """The copies of one step between devices."""

    schema: Annotated[Literal[1], VERSION]
    versions: Versions
    program: str
    machine: Annotated[
        str | None,
        Meta(description="The devices of the machine, in the syntax of --machine."),
    ]
    placer: Annotated[Placer | None, Meta(description="The placer that assigned the devices.")]
    pairs: Annotated[
        list[PairObject], Meta(description="The pairs of devices, the largest first.")
    ]
    layers: Annotated[list[LayerObject], Meta(description="The layers, the largest first.")]
    copies: list[CopyObject]


def render_json(placement: Placement, all_sent: Sequence[SentTensor]) -> Sequence[str]:
    """Returns the lines of the JSON document with each copy."""
    document = PlaceDocument(
        schema=1,
        versions=Versions.installed(),
        program=placement.program,
        machine=str(placement.machine) if placement.machine else None,
        placer=placement.placer,
        pairs=[
            PairObject(
                source=str(each.source),
                to=str(each.to),
                copies=each.copies,
                bytes=each.bytes,
                unknown=each.unknown,
            )
            for each in transfers(sent.copied for sent in all_sent)
        ],
        layers=[
            LayerObject(
                layer=each.layer or None,
                **each.total._asdict(),
                phases=[
                    PhaseObject(phase=phase, **total._asdict())
                    for phase, total in each.phases.items()
                ],
                where=_line(placement, each.largest),
            )
            for each in by_layer(all_sent)
        ],
        copies=[_copy(placement, each) for each in all_sent],
    )
    return to_json(document).split("\n")


def _copy(placement: Placement, each: SentTensor) -> CopyObject:
    copied = each.copied
    return CopyObject(
        tensor=copied.tensor,
        source=str(copied.source),
        to=str(copied.to),
        bytes=copied.bytes,
        phase=each.phase,
        layer=each.layer or None,
        variable=each.variable or None,
        tower=each.tower,
        taken_by=copied.taker,
        where=_line(placement, copied),
    )


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
