"""What the step statistics of one program tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from placement_checks.analysis.schedule import Task, replayed
from placement_checks.core.devices import Device
from placement_checks.core.timeline import Pair, Timeline, at_once

_LONG = 0.005  # seconds


@dataclass(frozen=True)
class Trace:
    """Some traced steps of one program.

    Attributes:
        rows: of the global batch.
        steps: each as it ran.
        tasks: the ops of one step, each as short as it ever was.
    """

    rows: int
    steps: Sequence[Timeline] = field(repr=False)
    tasks: Sequence[Task] = field(repr=False)

    @property
    def shortest(self) -> Timeline:
        """The step that took the least time."""
        return min(self.steps, key=lambda step: step.seconds)

    @cached_property
    def replayed(self) -> Timeline | None:
        """A step in which each device does one op at a time, without delay."""
        return replayed(self.tasks)

    def could(self, groups: Sequence[Collection[Device]]) -> list[Pair]:
        """For what share of time every two groups of devices can compute at once.

        So says a schedule in which nothing but what ops wait for holds up a GPU; what the host
        does takes no time in it, since hosts have many cores.
        """
        free = [task if task.device.is_gpu else task._replace(seconds=0.0) for task in self.tasks]
        timeline = replayed(free)
        return [] if timeline is None else at_once(timeline, groups)

    def did(self, groups: Sequence[Collection[Device]]) -> float | None:
        """The share of time for which every two groups did, in the step where it was largest.

        None where they compute for less than 5 ms each: then it tells how soon the threads of this
        machine woke up, and nothing of the program.
        """
        shares = [
            min(pair.share for pair in at_once(step, groups))
            for step in self.steps
            if len(groups) > 1 and all(step.computes(group) >= _LONG for group in groups)
        ]
        return max(shares, default=None)
