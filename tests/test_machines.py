from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks import Device, Machine, machines
from placement_checks.errors import UsageError
from placement_checks.machines import MOST_GPUS, MOST_TASKS, PRESETS, Task, checked_gpus

CURE = 'write it like "gpu*4" or "ps*2; worker*8: gpu*4"'

job_names = st.sampled_from(["ps", "worker", "chief", "cpu", "Job_2", "localhost"])


def task(job, index, *, cpus=1, gpus=0):
    return Task(job, index, (("CPU", cpus), *([("GPU", gpus)] if gpus else [])))


@st.composite
def clusters(draw):
    """Machines of several groups of tasks; a job may come back with other devices."""
    groups = draw(
        st.lists(
            st.tuples(job_names, st.integers(1, 3), st.integers(1, 3), st.integers(0, 3)),
            min_size=1,
            max_size=4,
        )
    )
    seen = Counter()
    tasks = []
    for job, count, cpus, gpus in groups:
        for _ in range(count):
            tasks.append(task(job, seen[job], cpus=cpus, gpus=gpus))
            seen[job] += 1
    return Machine(tuple(tasks))


@given(st.builds(Machine.local, st.integers(0, MOST_GPUS), cpus=st.integers(1, MOST_GPUS)))
def test_written_form_of_a_host_reads_back(machine):
    assert Machine.parse(str(machine)) == machine


@given(clusters())
def test_written_form_of_a_cluster_reads_back(machine):
    assert Machine.parse(str(machine)) == machine


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("gpu*2", [task("localhost", 0, gpus=2)]),
        ("GPU", [task("localhost", 0, gpus=1)]),
        ("cpu*3", [task("localhost", 0, cpus=3)]),
        ("gpu*0", [task("localhost", 0)]),
        (" gpu * 4 , cpu*2 ;", [task("localhost", 0, cpus=2, gpus=4)]),
        ("ps*2", [task("ps", 0), task("ps", 1)]),
        ("worker: gpu", [task("worker", 0, gpus=1)]),
        ("ps*1; worker*2: gpu*2", [task("ps", 0), *(task("worker", i, gpus=2) for i in (0, 1))]),
        ("worker*1: gpu*2; worker*1", [task("worker", 0, gpus=2), task("worker", 1)]),
    ],
)
def test_parse(text, tasks):
    assert Machine.parse(text) == Machine(tuple(tasks))


@pytest.mark.parametrize(("preset", "text"), PRESETS.items())
def test_preset_stands_for_its_devices(preset, text):
    assert Machine.parse(f" {preset} ") == Machine.parse(text)


def test_this_is_the_machine_at_hand(monkeypatch):
    monkeypatch.setattr(machines, "local_gpus", lambda: (0, 3, 4))
    assert Machine.parse("this") == Machine.local(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no devices"),
        (" ; ", "names no devices"),
        ("dgx1", "is no preset, 'dgx-1' is"),
        ("thiss", "is no preset, 'this' is"),
        ("gpu*2; gpu*2", "'gpu*2' names no job"),
        ("ps*2; gpu", "'gpu' names no job"),
        ("2*gpu", "'2*gpu' is no group of tasks"),
        (": gpu", "': gpu' is no group of tasks"),
        ("worker*2: tpu*8", "'tpu*8' is no list of cpu*N and gpu*N"),
        ("worker*2:", "'' is no list of cpu*N and gpu*N"),
        ("worker: gpu*2, gpu*2", "'gpu*2, gpu*2' is no list of cpu*N and gpu*N"),
        ("cpu*0, gpu*1", f"a task has at least 1 CPU, and at most {MOST_GPUS} of each"),
        (f"gpu*{MOST_GPUS + 1}", f"a task has at least 1 CPU, and at most {MOST_GPUS} of each"),
        ("ps*0", f"a job has between 1 and {MOST_TASKS} tasks"),
        (f"ps*{MOST_TASKS + 1}", f"a job has between 1 and {MOST_TASKS} tasks"),
    ],
)
def test_parse_says_what_is_wrong(text, message):
    with pytest.raises(UsageError) as caught:
        Machine.parse(text)
    assert str(caught.value) == f"machine '{text}': {message}; {CURE}"


@given(st.text() | st.text("psgucworkethi*:;, 0129"))
def test_parse_raises_nothing_but_usage_errors(text):
    machine = None
    with suppress(UsageError):
        machine = Machine.parse(text)
    assert machine is None or Machine.parse(str(machine)) == machine


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        ([], "gpu*3"),
        (["/gpu:7", "/cpu:0", ""], "gpu*3"),
        (["/job:localhost/gpu:0", "/task:4"], "gpu*3"),
        (["/job:ps/task:1/cpu:0"], "ps*2"),
        (["/job:ps"], "ps*1"),
        (["/job:worker/task:1", "/job:ps"], "ps*1; worker*2: gpu*3"),
        (["/job:chief/cpu:0"], "chief*1: gpu*3"),
        (["/job:trainer/task:1/gpu:0"], "trainer*1; trainer*1: gpu*3"),
        (["/job:ps/gpu:0", "/job:ps/task:1"], "ps*1: gpu*3; ps*1"),
    ],
)
def test_smallest_has_the_jobs_that_are_asked_for(requested, text):
    assert Machine.smallest(map(Device.parse, requested), 3) == Machine.parse(text)


@given(
    st.lists(
        st.builds(
            Device,
            st.sampled_from(["ps", "worker"]),
            st.none() | st.just(0),
            st.none() | st.integers(0, 3),
            st.none() | st.just("GPU"),
        ),
        min_size=1,
    )
)
def test_smallest_has_every_device_and_no_task_beyond(requested):
    machine = Machine.smallest(requested, 2)
    assert all(machine.has(each) for each in requested)
    last = {each.job: each.index for each in machine.tasks}
    asked = {job: max(each.task or 0 for each in requested if each.job == job) for job in last}
    assert last == asked


def test_devices_are_whole_names_in_the_order_of_the_tasks():
    machine = Machine.parse("ps*1; worker*2: gpu*2")
    assert [str(each) for each in machine.devices if each.job == "ps"] == [
        "/job:ps/replica:0/task:0/device:CPU:0"
    ]
    assert [str(each) for each in machine.gpus] == [
        f"/job:worker/replica:0/task:{number}/device:GPU:{index}"
        for number in range(2)
        for index in range(2)
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/gpu:1", True),
        ("/gpu:2", False),
        ("/job:worker/task:1", True),
        ("/job:worker/task:2", False),
        ("/job:ps/gpu:0", False),
        ("", True),
    ],
)
def test_has(pattern, expected):
    assert Machine.parse("ps*1; worker*2: gpu*2").has(Device.parse(pattern)) == expected


@pytest.mark.parametrize(
    ("text", "is_local"), [("gpu*2", True), ("worker*1: gpu*2", False), ("localhost*2", False)]
)
def test_is_local(text, is_local):
    assert Machine.parse(text).is_local == is_local


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, (0, 2, 10)),
        ("", ()),
        ("2", (2,)),
        ("10, 0", (10, 0)),
        ("0,-1,2", (0,)),
        ("2,1,0", (2,)),
        ("NoDevFiles", ()),
    ],
)
def test_local_gpus_are_those_of_the_driver_that_cuda_shows(monkeypatch, tmp_path, visible, gpus):
    for name in ("nvidia10", "nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(machines, "Path", lambda _: tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machines.local_gpus() == gpus


def test_no_driver_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(machines, "Path", lambda _: tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert machines.local_gpus() == ()


@pytest.mark.parametrize("count", [1, 256])
def test_checked_gpus(count):
    assert checked_gpus(count) == count


@pytest.mark.parametrize("count", [-1, 0, 257])
def test_checked_gpus_refuses_what_no_host_has(count):
    with pytest.raises(UsageError, match=f"{count} GPUs: one host has between 1 and 256"):
        checked_gpus(count)


@pytest.mark.parametrize(
    ("machine", "towers"),
    [("gpu*4", 4), ("cpu*2", 1), ("ps*2; worker*8: gpu*3", 3), ("a: gpu*2; b: gpu*5", 5)],
)
def test_a_program_builds_a_tower_for_each_gpu_of_a_task(machine: str, towers: int) -> None:
    assert Machine.parse(machine).towers == towers
