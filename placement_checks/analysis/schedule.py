"""A step replayed: when each op would run if every device did one at a time, without delay.

Such a schedule of measured ops stays the same on a loaded machine. What it leaves out is all that
happens between ops, so that a real step takes longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.timeline import Slice, Timeline


class Task(NamedTuple):
    """One op on its device: how long it takes, in seconds, and the tasks whose end it waits for.

    ``needs`` are the numbers of those tasks.
    """

    op: str
    device: Device
    seconds: float
    needs: Sequence[int] = ()


def replayed(tasks: Sequence[Task]) -> Timeline | None:
    """The schedule of some tasks: each device takes them one by one, as they become ready.

    None if some wait for each other, so that they could never run.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    waiting = [len(task.needs) for task in tasks]
    ready: list[tuple[float, int]] = []
    for number, task in enumerate(tasks):
        for need in task.needs:
            followers[need].append(number)
        if not task.needs:
            heappush(ready, (0.0, number))
    lanes: dict[Device, list[Slice]] = defaultdict(list)
    free: dict[Device, float] = defaultdict(float)
    earliest = [0.0] * len(tasks)
    done = 0
    while ready:
        since, number = heappop(ready)
        task = tasks[number]
        # What takes no time does not queue for its device: a copy is there when it was sent.
        start = max(since, free[task.device]) if task.seconds else since
        end = start + task.seconds
        if task.seconds:
            free[task.device] = end
            lanes[task.device].append(Slice(task.op, start, end))
        done += 1
        for follower in followers[number]:
            earliest[follower] = max(earliest[follower], end)
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, (earliest[follower], follower))
    return _timeline(lanes) if done == len(tasks) else None


def _timeline(lanes: Mapping[Device, Sequence[Slice]]) -> Timeline:
    return Timeline({device: lanes[device] for device in sorted(lanes, key=str)})
