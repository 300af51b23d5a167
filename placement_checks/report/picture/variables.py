"""The variables of a program, as the page draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from placement_checks.analysis.addresses import addresses
from placement_checks.analysis.layouts import layout
from placement_checks.analysis.roles import roles
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.placement import TRAINABLE, Placement, Tensor
from placement_checks.core.variables import Variable

_OTHER, _TRAINED, _SLOT = range(3)


def variables_data(placement: Placement, number: Mapping[str, int]) -> Iterator[list[Any]]:
    """Each variable: op, bytes, kind, dtype and shape, the towers that read it, and its role.

    The towers are left out if all of them read it.
    """
    trained = set(placement.collected.get(TRAINABLE, ()))
    slots: Mapping[str, str] = {}
    readers: Mapping[str, int] = {}
    towers = 0
    if placement.requested:
        slots = addresses(placement).slot_of
        lies = layout(placement)
        readers = lies.readers
        trained.update(lies.copies)
        towers = len(analyse(placement).towers)
    for variable in placement.variables:
        name = variable.name
        mask = readers.get(name) or readers.get(slots.get(name, ""), 0)
        by = [] if mask.bit_count() == towers else [n for n in range(towers) if mask >> n & 1]
        kind = _TRAINED if name in trained else _SLOT if name in slots else _OTHER
        role = str(roles(placement)[name]) if placement.requested else ""
        yield [number[name], _bytes(variable), kind, _form(variable), by, role]


def _bytes(variable: Variable) -> int | None:
    return Tensor(variable.dtype.removesuffix("_ref"), variable.shape).bytes


def _form(variable: Variable) -> str:
    shape = "?" if variable.shape is None else list(variable.shape)
    return f"{variable.dtype} {shape}" if variable.dtype else ""
