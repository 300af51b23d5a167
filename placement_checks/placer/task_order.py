"""Task names that make the placer process prefer the devices of the master.

If an op may be on several devices, TensorFlow's placer prefers the devices of the master, which is
the task that opens the session. Otherwise it takes the first device by name. Measurements on
clusters of processes, with each task as the master, confirm this: ops without a device follow the
master, and so do ops that name a job but no task. In the placer process, the master is an extra
task without usable devices, so only names count. `TaskOrder` therefore gives the program's master
the first name.

Two cases are not covered: an op that names a task without a job, and an op that must choose
between other tasks because the master has no suitable device.
"""

from __future__ import annotations

import re
from dataclasses import replace

from placement_checks.core.devices import Device
from placement_checks.core.machines import Machine

_FIRST = "A0_"  # prefix of a job's name, which sorts it before other jobs
_TASK = re.compile(rf"/job:{_FIRST}(\w+)((?:/replica:\d+)?)(?:/task:(\d+))?")


class TaskOrder:
    """Translates task names between a machine and the placer process."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._job = "" if machine.is_local else machine.master.job
        self._swapped: dict[int, int] = {}
        if self._job:
            first, master = min(machine.jobs[self._job]), machine.master.index
            self._swapped = {first: master, master: first}

    def tasks(self) -> list[list[object]]:
        """``[job, index, devices]`` of every task; devices are ``((type, count), …)``."""
        return [
            [*self._renamed(task.job, task.index), task.devices] for task in self._machine.tasks
        ]

    def device(self, name: str) -> str:
        """Rename a requested device for the placer process."""
        if f"/job:{self._job}" not in name:
            return name
        device = Device.parse(name)
        if device.job != self._job:
            return name
        job, task = self._renamed(device.job, device.task)
        return str(replace(device, job=job, task=task))

    def restore(self, text: str) -> str:
        """Restore the machine's names in a text of the placer process."""
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
