"""Numbers the devices of the picture, and lists the device of each op for each view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement

NOWHERE = -1


class DeviceTable:
    """Devices by number: the devices of the machine, then other requested or earlier devices."""

    def __init__(self, evidence: Evidence, before: Placement | None = None) -> None:
        self._placement = evidence.placement
        self._before = before
        self._trace = evidence.trace
        machine = self._placement.machine
        self._machine = machine
        self._numbers: dict[Device, int] = {}
        for device in machine.devices if machine else ():
            self._numbers[device] = len(self._numbers)
        self._of_machine = frozenset(self._numbers)

    @cached_property
    def views(self) -> Mapping[str, Sequence[int]]:
        """For each kind of evidence the number of each op's device, or `NOWHERE`."""
        ops = self._placement.by_number
        views: dict[str, Sequence[int]] = {}
        if self._placement.assigned:
            views["assigned"] = self._numbers_of(op.assigned for op in ops)
        if self._before is not None:
            was = self._before.ops
            views["before"] = self._numbers_of(
                was[op.name].assigned if op.name in was else None for op in ops
            )
        if self._placement.requested:
            asked = {
                kind.requested: self._machine_device(kind.requested)
                for kind in self._placement.kinds
            }
            views["requested"] = self._numbers_of(asked[op.requested] for op in ops)
        if self._trace:
            ran = {
                span.op: device
                for device, lane in self._trace.shortest.lanes.items()
                for span in lane
            }
            views["executed"] = self._numbers_of(ran.get(op.name) for op in ops)
        return views

    def _numbers_of(self, devices: Iterable[Device | None]) -> list[int]:
        return [NOWHERE if device is None else self.number(device) for device in devices]

    def number(self, device: Device) -> int:
        """Returns the number of a device, which is added if necessary."""
        return self._numbers.setdefault(device, len(self._numbers))

    def _machine_device(self, requested: Device) -> Device:
        """The device of the machine if only one matches a request, else the request itself."""
        matching = [device for device in self._of_machine if device.matches(requested)]
        return matching[0] if len(matching) == 1 else requested

    @property
    def devices(self) -> Sequence[Device]:
        return list(self._numbers)

    @cached_property
    def towers(self) -> Sequence[Sequence[int]]:
        """The devices of each tower; none if requested devices are unknown."""
        if not self._placement.requested:
            return []
        towers = analyze(self._placement).towers
        return [
            [self.number(self._machine_device(device)) for device in each.devices]
            for each in towers
        ]

    def data(self) -> list[dict[str, Any]]:
        """Returns the devices of all views and towers for the page."""
        _ = self.views
        towers = {device: number for number, each in enumerate(self.towers) for device in each}
        return [
            {
                "label": self.label(device),
                "task": self._task(device),
                "gpu": device.is_gpu,
                "exists": device in self._of_machine or self._machine is None,
                "tower": towers.get(number, NOWHERE),
            }
            for number, device in enumerate(self.devices)
        ]

    def label(self, device: Device) -> str:
        """Returns ``GPU:0``, ``worker 1 GPU:0`` in a cluster, or ``any of /job:ps``."""
        if not device:
            return "no device requested"
        if device.type is None or device.index is None:
            return f"any of {device.short}"
        return " ".join(filter(None, [self._task(device), f"{device.type}:{device.index}"]))

    def _task(self, device: Device) -> str:
        if self._machine is None or self._machine.is_local or device.job is None:
            return ""
        return f"{device.job} {device.task or 0}"
