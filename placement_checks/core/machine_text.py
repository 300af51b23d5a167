"""Tasks: the processes of a machine, and the text form that describes them.

A machine is written as groups of equal tasks, ``;`` between them::

    gpu*2                          one host with CPU:0 and two GPUs
    cpu*2, gpu*4                   one host with two CPU devices and four GPUs
    ps*2; worker*64: gpu*8         two parameter servers, 64 workers of eight GPUs
    worker/task:3: gpu*8           a task whose job has no others, or not all of them
    …; master=worker/task:1        the task whose server sessions are opened on
    dgx-1, worker*64: dgx-1        a preset
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.devices import Device
from placement_checks.core.errors import UsageError
from placement_checks.core.gpus import MAX_GPUS
from placement_checks.util.text import close_matches

MAX_TASKS = 10_000
PRESETS = {
    "k40-pair": "gpu*2",
    "dgx-1": "gpu*8",
    "dgx-2": "gpu*16",
    "dgx-a100": "gpu*8",
    "p2.16xlarge": "gpu*16",
    "p3.16xlarge": "gpu*8",
    "p4d.24xlarge": "gpu*8",
    "g2-2-workers": "ps*1; worker*2: gpu*2",
}
_TYPES = ("gpu", "cpu")
_GROUP = re.compile(
    r"(?P<job>[A-Za-z][A-Za-z0-9_]*)(?:/task:(?P<task>\d{1,9})|\s*\*\s*(?P<count>\d{1,9}))?\s*"
)
_COUNTED = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?:\s*\*\s*(\d{1,9}))?")
_MASTER = re.compile(r"master\s*=\s*([A-Za-z][A-Za-z0-9_]*)/task:(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Task:
    """One process of a machine: a job's name, the task's index, how many devices of each type."""

    job: str
    index: int
    devices: tuple[tuple[str, int], ...]

    def device_names(self) -> Iterable[Device]:
        """Its devices, named in full, CPUs first."""
        for kind, count in self.devices:
            for index in range(count):
                yield Device(self.job, 0, self.index, kind, index)


def parse_tasks(text: str) -> tuple[list[Task], tuple[str, int] | None]:
    """The tasks that a text describes, and the job and index of the master that it states.

    Raises:
        UsageError: a malformed group, or counts out of range.
    """
    text = PRESETS.get(text.strip(), text)
    tasks: list[Task] = []
    master = None
    for group in filter(None, (part.strip() for part in text.split(";"))):
        if stated := _MASTER.fullmatch(group):
            if master is not None:
                raise malformed(text, "names two masters")
            master = (stated[1], int(stated[2]))
        else:
            tasks += _parse_group(group, after=tasks, whole=text)
    if not tasks:
        raise malformed(text, "names no devices")
    return tasks, master


def devices_of(cpus: int, gpus: int) -> tuple[tuple[str, int], ...]:
    """The devices of a task: ``(type, count)``, with GPUs only where there are some."""
    return (("CPU", cpus), ("GPU", gpus)) if gpus else (("CPU", cpus),)


def _parse_group(group: str, *, after: list[Task], whole: str) -> list[Task]:
    """The tasks of one group; a job that ``after`` has already goes on counting."""
    if _counts(group) is not None:
        if after:
            raise malformed(whole, f"'{group}' names no job")
        return [Task("localhost", 0, _parse_devices(group, whole))]
    match = _GROUP.match(group)
    if match is None or group[match.end() :][:1] not in ("", ":"):
        raise malformed(whole, _unlike_a_group(group, whole))
    job, index, count = match["job"], match["task"], match["count"]
    colon, text = group[match.end() :][:1], group[match.end() + 1 :]
    if not (colon or index):
        _check_spelling(job, count, whole)
    if not (colon or index or count):
        raise malformed(whole, _unlike_a_group(group, whole))
    devices = _parse_devices(text if colon else "cpu", whole)
    taken = [task.index for task in after if task.job == job]
    first = int(index) if index else max(taken, default=-1) + 1
    last = first + (1 if index else int(count or 1)) - 1
    if last < first or last >= MAX_TASKS:
        raise malformed(whole, f"a job has between 1 and {MAX_TASKS} tasks")
    if first in taken:
        raise malformed(whole, f"/job:{job}/task:{first} is named twice")
    return [Task(job, task, devices) for task in range(first, last + 1)]


def _check_spelling(job: str, count: str | None, whole: str) -> None:
    """Refuse a device or preset that is misspelled, which would be a job of CPU tasks.

    Raises:
        UsageError: the name is like one of theirs, and no devices are stated.
    """
    name, digits = re.fullmatch(r"(.*?)x?(\d*)", job.lower()).groups()  # type: ignore[union-attr]
    for near in close_matches(name, _TYPES, cutoff=0.66):  # two letters of three
        number = count or digits or "1"
        raise UsageError(
            f"machine '{whole}'",
            f"'{job}' is not a type of device",
            f"did you mean '{near}*{number}'? "
            f"A job of that name is written '{job}*{number}: cpu*1'",
        )
    for near in close_matches(job, PRESETS, cutoff=0.8):
        raise malformed(whole, f"'{job}' is not a preset, '{near}' is")


def _unlike_a_group(group: str, whole: str) -> str:
    """Why a group cannot be read."""
    near = close_matches(group, [*PRESETS, "this", TF_CONFIG], cutoff=0.8)
    if group == whole.strip() and near:
        return f"is not a preset, '{near[0]}' is"
    if re.fullmatch(r"[A-Za-z]\w*", group):
        return f"'{group}' has no number of tasks, write {group}*1"
    return f"'{group}' is not a group of tasks"


def _counts(text: str) -> dict[str, int] | None:
    """How many devices of each type ``cpu*2, gpu*4`` lists; None where it is no such list."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = _COUNTED.fullmatch(part.strip())
        if match is None or match[1].lower() not in _TYPES or match[1].lower() in counts:
            return None
        counts[match[1].lower()] = int(match[2] or 1)
    return counts


def _parse_devices(text: str, whole: str) -> tuple[tuple[str, int], ...]:
    counts = _counts(PRESETS.get(text.strip(), text))
    if counts is None:
        raise malformed(whole, f"'{text.strip()}' is not a list of cpu*N and gpu*N")
    if counts.get("cpu") == 0 or max(counts.values()) > MAX_GPUS:
        raise malformed(whole, f"a task has at least 1 CPU, and at most {MAX_GPUS} of each")
    return devices_of(counts.get("cpu", 1), counts.get("gpu", 0))


def groups_text(tasks: Iterable[Task]) -> Iterator[str]:
    """The groups of equal tasks, in the form that is read; single ones where indices have gaps."""
    following: dict[str, int] = {}
    for (job, devices), group in groupby(tasks, key=lambda task: (task.job, task.devices)):
        indices = [task.index for task in group]
        first = following.get(job, 0)
        following[job] = max(first, *(index + 1 for index in indices))
        if indices == list(range(first, first + len(indices))):
            yield f"{job}*{len(indices)}: {devices_text(devices)}"
        else:
            yield from (f"{job}/task:{index}: {devices_text(devices)}" for index in indices)


def devices_text(devices: tuple[tuple[str, int], ...]) -> str:
    """Devices in the form that is read, such as ``cpu*2, gpu*4``; one CPU is left out."""
    shown = [f"{kind.lower()}*{count}" for kind, count in devices if (kind, count) != ("CPU", 1)]
    return ", ".join(shown) or "cpu*1"


def malformed(text: str, message: str) -> UsageError:
    """The error for a machine that is described in a wrong form."""
    return UsageError(
        f"machine '{text}'", message, 'write it like "gpu*4" or "ps*2; worker*8: gpu*4"'
    )
