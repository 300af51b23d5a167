"""The type of the fixture ``place``, for tests that have types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.machines import Machine
    from placement_checks.core.program import Batch, Target


class Place(Protocol):
    """What the fixture ``place`` gives: ``def test_towers(place: Place) -> None``."""

    def __call__(
        self,
        target: Target,
        *,
        gpus: int = ...,
        machine: Machine | str | None = ...,
        soft: bool | None = ...,
        reference: Target | None = ...,
        batch: Batch = ...,
        args: Sequence[str] = ...,
        v1: bool = ...,
        let: Mapping[str, str] = ...,
        limit: float | None = ...,
    ) -> Evidence:
        """Place a program or graph; defaults come from the marks and the configuration."""
