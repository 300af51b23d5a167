"""Machines: hosts and clusters with the devices that a program is placed on. They need not exist.

A machine consists of tasks, which are processes. Its text form is a list of groups of equal
tasks, separated by ``;``::

    gpu*2                          one host with CPU:0 and two GPUs
    cpu*2, gpu*4                   one host with two CPU devices and four GPUs
    ps*2; worker*64: gpu*8         two parameter servers, 64 workers with eight GPUs each
    worker/task:3: gpu*8           a single task
    …; master=worker/task:1        the task with the server for sessions
    dgx-1, worker*64: dgx-1        a preset
    this                           this machine
    TF_CONFIG                      the cluster in this environment variable

`Machine.of_cluster` converts a ``ClusterSpec``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from placement_checks.core import cluster_spec, limits
from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.devices import Device, checked_gpus, local_gpus
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.ranks import JOB
from placement_checks.util.text import close_matches, join_and, nearest, plural

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
_NAME_FEWER = "name the devices that a real machine has"
_GROUP = re.compile(
    r"(?P<job>[A-Za-z][A-Za-z0-9_]*)(?:/task:(?P<task>\d{1,9})|\s*\*\s*(?P<count>\d{1,9}))?\s*"
)
_COUNTED = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?:\s*\*\s*(\d{1,9}))?")
_MASTER = re.compile(r"master\s*=\s*([A-Za-z][A-Za-z0-9_]*)/task:(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Task:
    """A process of a machine: its job, its index, and the number of devices of each type."""

    job: str
    index: int
    devices: tuple[tuple[str, int], ...]

    def device_names(self) -> Iterable[Device]:
        """The full names of the devices, CPUs first."""
        for kind, count in self.devices:
            for index in range(count):
                yield Device(self.job, 0, self.index, kind, index)


class GpuLimit(NamedTuple):
    """A setting of a program that lets TensorFlow use only some GPUs of the host."""

    gpus: int  # the largest number of GPUs that TensorFlow uses
    setting: str  # the setting, as it is found in the program

    @staticmethod
    def of_session(session: Mapping[str, Any]) -> Iterator[GpuLimit]:
        """Yield the limits in a session configuration, given as nested mappings."""
        counts = session.get("device_count")
        number = counts.get("GPU") if isinstance(counts, Mapping) else None
        if isinstance(number, int) and number >= 0:
            yield GpuLimit(number, f"device_count={{'GPU': {number}}} in the ConfigProto")
        options = session.get("gpu_options")
        listed = options.get("visible_device_list") if isinstance(options, Mapping) else None
        if isinstance(listed, str) and listed.strip():
            gpus = len(list(filter(None, map(str.strip, listed.split(",")))))
            yield GpuLimit(gpus, f"gpu_options.visible_device_list={listed!r} in the ConfigProto")


class _Size:
    """Counts the tasks and devices of a machine; ``object`` is the machine in errors."""

    def __init__(self, object: str) -> None:
        self._object = object
        self._tasks = 0
        self._devices = 0

    def add(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield tasks one by one, so that no task beyond the limits is created.

        Raises:
            InputError: the machine exceeds a limit.
        """
        for task in tasks:
            self._tasks += 1
            self._devices += sum(count for _, count in task.devices)
            limits.TASKS.check(self._tasks, self._object, _NAME_FEWER)
            limits.DEVICES.check(self._devices, self._object, _NAME_FEWER)
            yield task


def parse_tasks(text: str) -> tuple[list[Task], tuple[str, int] | None]:
    """Parse the text form into tasks, and the job and index of a stated master.

    Raises:
        UsageError: a group is malformed, or a count is out of range.
    """
    text = PRESETS.get(text.strip(), text)
    tasks: list[Task] = []
    following: Counter[str] = Counter()
    taken: set[tuple[str, int]] = set()
    size = _Size("")
    master = None
    for group in filter(None, (part.strip() for part in text.split(";"))):
        if stated := _MASTER.fullmatch(group):
            if master is not None:
                raise malformed(text, "names two masters", is_predicate=True)
            master = (stated[1], int(stated[2]))
        else:
            try:
                tasks += size.add(_parse_group(group, following, taken, whole=text))
            except InputError as error:
                raise malformed(text, error.message, is_predicate=True) from None
    if not tasks:
        raise malformed(text, "names no devices", is_predicate=True)
    return tasks, master


def devices_of(cpus: int, gpus: int) -> tuple[tuple[str, int], ...]:
    """The devices of a task as ``(type, count)``. GPUs are left out if their number is 0."""
    return (("CPU", cpus), ("GPU", gpus)) if gpus else (("CPU", cpus),)


def _parse_group(
    group: str, following: Counter[str], taken: set[tuple[str, int]], *, whole: str
) -> list[Task]:
    """The tasks of one group, which follow the earlier tasks of the same job.

    Args:
        group: the group.
        following: the index behind the tasks of earlier groups, by job; it is updated.
        taken: the job and index of the tasks of earlier groups. Tasks are added.
        whole: the machine, for errors.
    """
    if _counts(group) is not None:
        if taken:
            raise malformed(whole, f"'{group}' names no job")
        taken.add(("localhost", 0))
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
    first = int(index) if index else following[job]
    last = first + (1 if index else int(count or 1)) - 1
    if last < first or last >= limits.TASKS.most:
        raise malformed(whole, f"a job has between 1 and {limits.TASKS.most} tasks")
    if (job, first) in taken:
        raise malformed(whole, f"/job:{job}/task:{first} is named twice")
    following[job] = max(following[job], last + 1)
    taken.update((job, task) for task in range(first, last + 1))
    return [Task(job, task, devices) for task in range(first, last + 1)]


def _check_spelling(job: str, count: str | None, whole: str) -> None:
    """Refuse a misspelled device type or preset, which would be read as a job of CPU tasks.

    Raises:
        UsageError: the name is similar to a device type or preset, and no devices are stated.
    """
    name, digits = re.fullmatch(r"(.*?)x?(\d*)", job.lower()).groups()  # type: ignore[union-attr]
    for near in close_matches(name, _TYPES, cutoff=0.66):  # two characters of three
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
    """The reason why a group is malformed."""
    near = close_matches(group, [*PRESETS, "this", TF_CONFIG], cutoff=0.8)
    if group == whole.strip() and near:
        return f"is not a preset, '{near[0]}' is"
    if re.fullmatch(r"[A-Za-z]\w*", group):
        return f"'{group}' lacks a number of tasks, write {group}*1"
    return f"'{group}' is not a group of tasks"


def _counts(text: str) -> dict[str, int] | None:
    """The number of devices of each type in ``cpu*2, gpu*4``; None for any other text."""
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
    if counts.get("cpu") == 0 or max(counts.values()) > limits.GPUS.most:
        raise malformed(
            whole, f"a task has at least 1 CPU, and at most {limits.GPUS.most} of each"
        )
    return devices_of(counts.get("cpu", 1), counts.get("gpu", 0))


def groups_text(tasks: Iterable[Task]) -> Iterator[str]:
    """Format tasks as groups that `parse_tasks` reads, such as ``worker*2: gpu*4``.

    A task is a separate group if its index does not follow the previous index of its job.
    """
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
    """Format devices as `parse_tasks` reads them: ``cpu*2, gpu*4``; a single CPU is left out."""
    shown = [f"{kind.lower()}*{count}" for kind, count in devices if (kind, count) != ("CPU", 1)]
    return ", ".join(shown) or "cpu*1"


def malformed(text: str, message: str, *, is_predicate: bool = False) -> UsageError:
    """The error for a machine that is described in a wrong form."""
    return UsageError(
        f"machine '{text}'",
        message,
        'write it like "gpu*4" or "ps*2; worker*8: gpu*4"',
        is_predicate=is_predicate,
    )


_COMPUTING_JOBS = {"worker", "chief"}
_MASTERS = ("chief", "worker")


@dataclass(frozen=True, repr=False)
class Machine:
    """The tasks of one host or of a cluster.

    Attributes:
        tasks: all tasks.
        stated_master: the job and index of `master`; None for the default.
        hidden_gpus: further GPUs of the host, which a setting of the program hides.
        hidden_by: this setting; ``""`` without hidden GPUs.
    """

    tasks: tuple[Task, ...]
    stated_master: tuple[str, int] | None = None
    hidden_gpus: tuple[Device, ...] = field(default=(), compare=False)
    hidden_by: str = field(default="", compare=False)

    @staticmethod
    def local(gpus: int = 2, *, cpus: int = 1) -> Machine:
        """One host with ``cpus`` CPU devices and ``gpus`` GPUs."""
        return Machine((Task("localhost", 0, devices_of(cpus, gpus)),))

    @staticmethod
    def of_ranks(ranks: int) -> Machine:
        """The processes of a Horovod program, with one GPU each."""
        tasks = (Task(JOB, index, devices_of(1, 1)) for index in range(ranks))
        return Machine(tuple(tasks)) if ranks > 1 else Machine.local(1)

    @staticmethod
    def parse(text: str, gpus: int = 2) -> Machine:
        """Parse the text form of a machine. `str` is the inverse.

        Args:
            text: the machine.
            gpus: the number of GPUs of each worker; only for ``TF_CONFIG``, which does not state
                this number.

        Raises:
            UsageError: a preset is unknown, a group is malformed, or a count is out of range.
            InputError: ``TF_CONFIG`` describes no cluster.
        """
        if text.strip() == "this":
            return Machine.local(local_gpus())
        if text.strip() == cluster_spec.TF_CONFIG:
            spec, own = cluster_spec.from_environment()
            machine = _of_addresses(spec, gpus)
            return machine if machine.is_local else replace(machine, stated_master=own)
        tasks, master = parse_tasks(text)
        machine = Machine(tuple(tasks), master)
        if master is not None:
            if machine.is_local:
                raise malformed(text, "names a master, and is one host", is_predicate=True)
            if lacking := machine.lacks(Device(master[0], task=master[1])):
                raise malformed(text, lacking)
        return machine

    @staticmethod
    def of_cluster(spec: Any, gpus: int = 2) -> Machine:
        """Convert a ``tf.train.ClusterSpec``, or an equivalent mapping.

        Args:
            spec: the jobs and tasks. It does not state their devices.
            gpus: the number of GPUs of each task of a job called worker or chief. Other tasks have
                a CPU only.

        Raises:
            InputError: the spec is malformed, two tasks have the same address, or an index is
                10,000 or more.
            UsageError: ``gpus`` is below 1 or above 256.
        """
        return _of_addresses(cluster_spec.addresses(spec), gpus)

    @staticmethod
    def smallest(requested: Iterable[Device], gpus: int, program: str = "the program") -> Machine:
        """The smallest machine with every job and task that ``requested`` names.

        A task has ``gpus`` GPUs if one of its GPUs is requested, or if its job is called worker or
        chief. Other tasks have a CPU only. Without jobs the machine is one host. Errors name
        ``program``.

        Raises:
            UsageError: the index of a task is 10,000 or more.
            InputError: the jobs together exceed a limit.
        """
        highest: dict[str, int] = {}
        computing: set[tuple[str, int]] = set()
        for device in requested:
            if device.job is None or device.job == "localhost":
                continue
            task = device.task or 0
            highest[device.job] = max(highest.get(device.job, 0), task)
            if device.is_gpu:
                computing.add((device.job, task))
        if not highest:
            return Machine.local(gpus)
        for job, last in highest.items():
            if last >= limits.TASKS.most:
                raise UsageError(
                    f"/job:{job}/task:{last}",
                    f"a job has at most {limits.TASKS.most} tasks",
                    "name a task that the cluster can have",
                )
        tasks = (
            Task(job, index, devices_of(1, gpus if with_gpus else 0))
            for job, last in sorted(highest.items())
            for index in range(last + 1)
            for with_gpus in [job in _COMPUTING_JOBS or (job, index) in computing]
        )
        return Machine(tuple(_Size(program).add(tasks)))

    @staticmethod
    def from_devices(devices: Iterable[Device], program: str = "the log") -> Machine:
        """The smallest machine with these devices, given by full names, and a CPU in each task.

        ``program`` is the name of the log or program for errors.

        Raises:
            InputError: the index of a device is 256 or more, the index of a task is 10,000 or
                more, or the tasks together exceed a limit.
        """
        counts: dict[tuple[str, int], dict[str, int]] = {}
        for device in devices:
            for index, limit in ((device.index, limits.GPUS), (device.task, limits.TASKS)):
                if (index or 0) >= limit.most:
                    raise InputError(
                        program,
                        f"names {device}, but the limit is {limit}",
                        "check the name of the device",
                        is_predicate=True,
                    )
            kinds = counts.setdefault((device.job or "localhost", device.task or 0), {"CPU": 1})
            kind = device.type or "CPU"
            kinds[kind] = max(kinds.get(kind, 0), (device.index or 0) + 1)
        tasks = (
            Task(job, index, tuple(sorted(kinds.items())))
            for (job, index), kinds in sorted(counts.items())
        )
        return Machine(tuple(_Size(program).add(tasks)))

    def with_one_gpu_each(self, requested: Iterable[Device]) -> Machine:
        """The same cluster with one GPU per task, if no second GPU of a task is requested.

        A single host, and a cluster without requested GPUs, are returned unchanged.

        Args:
            requested: the devices that a program requests.
        """
        highest = max((device.index or 0 for device in requested if device.is_gpu), default=None)
        if self.is_local or highest != 0:
            return self
        tasks = (
            replace(
                task, devices=tuple((kind, 1 if kind == "GPU" else n) for kind, n in task.devices)
            )
            for task in self.tasks
        )
        return replace(self, tasks=tuple(tasks))

    def limited(self, limits: Iterable[GpuLimit]) -> Machine:
        """The part of the machine that TensorFlow uses under the settings of a program.

        TensorFlow renumbers the GPUs that it uses, so only their number counts. A cluster is
        unchanged: such settings affect one process.
        """
        limit = min(limits, default=None)
        if limit is None or not self.is_local or limit.gpus >= len(self.gpus):
            return self
        counts = dict(self.tasks[0].devices)
        return replace(
            Machine.local(limit.gpus, cpus=counts["CPU"]),
            hidden_gpus=self.gpus[limit.gpus :],
            hidden_by=limit.setting,
        )

    @cached_property
    def towers(self) -> int:
        """The number of towers for the machine: the most GPUs of any task, at least 1."""
        return max([1, *(dict(task.devices).get("GPU", 0) for task in self.tasks)])

    @cached_property
    def master(self) -> Task:
        """The task with the server for sessions. The placer prefers its devices.

        The default is the first task of the job chief, else of the job worker, else of the job
        that is first in alphabetical order.
        """
        if self.stated_master is not None:
            job, index = self.stated_master
        else:
            job = next((job for job in _MASTERS if job in self.jobs), min(self.jobs))
            index = min(self.jobs[job])
        return next(task for task in self.tasks if (task.job, task.index) == (job, index))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The full names of all devices."""
        return tuple(device for task in self.tasks for device in task.device_names())

    @cached_property
    def gpus(self) -> tuple[Device, ...]:
        """The full names of all GPUs."""
        return tuple(device for device in self.devices if device.is_gpu)

    @property
    def is_local(self) -> bool:
        """Whether the machine is one host, so that ops need not name a job."""
        return len(self.tasks) == 1 and (
            (self.tasks[0].job, self.tasks[0].index) == ("localhost", 0)
        )

    def has(self, pattern: Device) -> bool:
        """Whether a device of the machine matches ``pattern``."""
        if pattern not in self._matched:
            self._matched[pattern] = any(device.matches(pattern) for device in self.devices)
        return self._matched[pattern]

    @cached_property
    def _matched(self) -> dict[Device, bool]:
        """The patterns that `has` was asked for. Many ops request the same device."""
        return {}

    def missing(self, pattern: Device) -> str:
        """Why no device of the machine matches ``pattern``; ``""`` if one does.

        Equal patterns give the same string, because the text of a cluster may be long.
        """
        if self.has(pattern):
            return ""
        if pattern not in self._missing:
            self._missing[pattern] = f"the machine ({self}) has no {pattern}"
        return self._missing[pattern]

    @cached_property
    def _missing(self) -> dict[Device, str]:
        return {}

    @cached_property
    def jobs(self) -> dict[str, list[int]]:
        """The indices of the tasks, by job."""
        indices: dict[str, list[int]] = {}
        for task in self.tasks:
            indices.setdefault(task.job, []).append(task.index)
        return indices

    def lacks(self, device: Device) -> str:
        """Describe a request for a job or task that the machine lacks; else ``""``."""
        lacking = self.lacking(device)
        if not lacking:
            return ""
        task = device.task if device.job in self.jobs else None
        return f"requests {Device(device.job, task=task)}, but {lacking}"

    def lacking(self, device: Device) -> str:
        """Describe what the machine has instead of the job or task of ``device``; else ``""``."""
        if device.job is None:
            return ""
        if device.job not in self.jobs:
            if self.is_local:
                return f"the machine is a single host ({self})"
            return f"the machine has only {join_and(f'/job:{job}' for job in self.jobs)}"
        tasks = self.jobs[device.job]
        if device.task is None or device.task in tasks:
            return ""
        return f"the job {device.job} has {cluster_spec.tasks_text(sorted(tasks))}"

    def hides(self, pattern: Device) -> bool:
        """Whether a setting of the program hides the GPU that ``pattern`` requests."""
        return not self.has(pattern) and any(gpu.matches(pattern) for gpu in self.hidden_gpus)

    def fix_for(self, device: Device) -> str:
        """The fix if the machine lacks the job or task of ``device``."""
        near = nearest(device.job or "", list(self.jobs))
        if near and near != device.job:
            return f"did you mean /job:{near}?"
        return (
            "correct the name, or describe a machine that has it: "
            '--machine "ps*2; worker*8: gpu*4"'
        )

    def __repr__(self) -> str:
        return f"Machine({str(self)!r})"

    @property
    def title(self) -> str:
        """The text form for headings: it also names the setting of the program that hides GPUs."""
        if not self.hidden_gpus:
            return str(self)
        hidden, total = len(self.hidden_gpus), len(self.hidden_gpus) + len(self.gpus)
        return f"{self}, as {self.hidden_by} hides {hidden} of {plural(total, 'GPU')}"

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if self.is_local:
            return devices_text(self.tasks[0].devices)
        groups = list(groups_text(self.tasks))
        if self.stated_master is not None:
            job, index = self.stated_master
            groups.append(f"master={job}/task:{index}")
        return "; ".join(groups)


def _of_addresses(spec: cluster_spec.Addresses, gpus: int) -> Machine:
    checked_gpus(gpus)
    for job, tasks in spec.items():
        if max(tasks) >= limits.TASKS.most:
            raise InputError(
                f"/job:{job}/task:{max(tasks)}", f"a job has at most {limits.TASKS.most} tasks"
            )
    every = (
        Task(job, index, devices_of(1, gpus if job in _COMPUTING_JOBS else 0))
        for job, tasks in spec.items()
        for index in tasks
    )
    return Machine(tuple(_Size("the cluster").add(every)))
