"""Names for tasks that make the placer process prefer the devices of the master.

The placer prefers the devices of the task that the session is opened on, the master.

Of devices that suit an op alike, its own come first, then it goes by name (measured on clusters of
processes with each task as the master: unpinned ops follow it, and so do those that name a job
and leave the task open). The master of the placer process is a task of its own without a device to
give, so it goes by name alone; there the master's job and task get names that come first.

What this does not cover: an op that names a task without a job, and an op that goes to one of
several other tasks because the master's has no device for it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from placement_checks.core.devices import Device
from placement_checks.core.machines import Machine

_FIRST = "A0_"  # before a job's name: comes before what does not begin so
_TASK = re.compile(rf"/job:{_FIRST}(\w+)((?:/replica:\d+)?)(?:/task:(\d+))?")


class TaskOrder:
    """The names of a machine's tasks as the placer process knows them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._job = "" if machine.is_local else machine.master.job
        self._swapped: dict[int, int] = {}
        if self._job:
            first, master = min(machine.jobs[self._job]), machine.master.index
            self._swapped = {first: master, master: first}

    def tasks(self) -> list[list[object]]:
        """``[job, index, devices]`` of every task, devices as ``((type, count), …)``."""
        return [
            [*self._renamed(task.job, task.index), task.devices] for task in self._machine.tasks
        ]

    def device(self, name: str) -> str:
        """A requested device, as the placer process knows it."""
        if f"/job:{self._job}" not in name:
            return name
        device = Device.parse(name)
        if device.job != self._job:
            return name
        job, task = self._renamed(device.job, device.task)
        return str(replace(device, job=job, task=task))

    def restore(self, text: str) -> str:
        """A text of the placer process, with the names that the machine has."""
        if _FIRST not in text:
            return text
        return _TASK.sub(self._restored, text)

    def _restored(self, match: re.Match[str]) -> str:
        task = "" if match[3] is None else f"/task:{self._task(int(match[3]))}"
        return f"/job:{match[1]}{match[2]}{task}"

    def _renamed(self, job: str, task: int | None) -> tuple[str, int | None]:
        if job != self._job:
            return job, task
        return _FIRST + job, None if task is None else self._task(task)

    def _task(self, index: int) -> int:
        return self._swapped.get(index, index)
