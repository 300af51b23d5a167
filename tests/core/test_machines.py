from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.growth import check_linear

from placement_checks import Device, Machine
from placement_checks.core import machines
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.limits import DEVICES, GPUS, TASKS
from placement_checks.core.machines import PRESETS, GpuLimit, Task

FIX = 'write it like "gpu*4" or "ps*2; worker*8: gpu*4"'

job_names = st.sampled_from(["ps", "worker", "chief", "cpu", "Job_2", "localhost"])


def task(job: str, index: int, *, cpus: int = 1, gpus: int = 0) -> Task:
    return Task(job, index, (("CPU", cpus), *([("GPU", gpus)] if gpus else [])))


@st.composite
def clusters(draw: st.DrawFn) -> Machine | None:
    """Machines of several groups of tasks; a job may come back with other devices.

    The indices of a job may have gaps, within a group and between groups, and any task of a
    cluster may be the master.
    """
    gaps = st.lists(st.sampled_from([0, 0, 0, 1, 4]), min_size=1, max_size=4)
    groups = draw(
        st.lists(
            st.tuples(job_names, gaps, st.integers(1, 3), st.integers(0, 3)),
            min_size=1,
            max_size=4,
        )
    )
    following: Counter[str] = Counter()
    tasks = []
    for job, before, cpus, gpus in groups:
        for gap in before:
            tasks.append(task(job, following[job] + gap, cpus=cpus, gpus=gpus))
            following[job] += gap + 1
    masters = [] if Machine(tuple(tasks)).is_local else [(task.job, task.index) for task in tasks]
    return Machine(tuple(tasks), draw(st.sampled_from([None, *masters])))


@given(st.builds(Machine.local, st.integers(0, GPUS.most), cpus=st.integers(1, GPUS.most)))
def test_written_form_of_a_host_reads_back(machine: Machine) -> None:
    assert Machine.parse(str(machine)) == machine


@given(clusters())
def test_written_form_of_a_cluster_reads_back(machine: Machine) -> None:
    assert Machine.parse(str(machine)) == machine


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([0, 1, 2], "ps*3: cpu*1"),
        ([3], "ps/task:3: cpu*1"),
        ([0, 2], "ps/task:0: cpu*1; ps/task:2: cpu*1"),
        ([0, 1, 3, 4], "; ".join(f"ps/task:{i}: cpu*1" for i in (0, 1, 3, 4))),
        ([1, 2], "ps/task:1: cpu*1; ps/task:2: cpu*1"),
    ],
)
def test_tasks_with_gaps_are_written_one_by_one(indices: Sequence[int], text: str) -> None:
    machine = Machine(tuple(task("ps", index) for index in indices))
    assert str(machine) == text
    assert Machine.parse(text) == machine


def test_a_repeated_job_continues_its_indices() -> None:
    machine = Machine((task("ps", 4), task("w", 0), task("ps", 5, gpus=1), task("ps", 7)))
    assert str(machine) == "ps/task:4: cpu*1; w*1: cpu*1; ps*1: gpu*1; ps/task:7: cpu*1"
    assert Machine.parse(str(machine)) == machine


@pytest.mark.parametrize(
    "text",
    [
        "w/task:3: cpu*1; w/task:1: cpu*1; w/task:2: gpu*1",
        "w/task:5: cpu*1; w/task:0: cpu*1; w/task:1: gpu*1; w*1: cpu*1",
        "w/task:5: cpu*1; w/task:3: cpu*1; v*1: cpu*1; w*1: gpu*1",
    ],
)
def test_indices_in_another_order_read_back(text: str) -> None:
    assert str(Machine.parse(text)) == text


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
        ("worker*64: dgx-1", [task("worker", i, gpus=8) for i in range(64)]),
        ("ps*1; w:  k40-pair ", [task("ps", 0), task("w", 0, gpus=2)]),
        ("worker/task:3: gpu*8", [task("worker", 3, gpus=8)]),
        ("worker/task:3", [task("worker", 3)]),
        ("worker/task:03 : cpu*2", [task("worker", 3, cpus=2)]),
        ("w/task:2; w*2: gpu", [task("w", 2), task("w", 3, gpus=1), task("w", 4, gpus=1)]),
        ("a/task:3; b*1", [task("a", 3), task("b", 0)]),
        ("w/task:5; w/task:3; w*1", [task("w", 5), task("w", 3), task("w", 6)]),
        (f"w/task:{TASKS.most - 1}", [task("w", TASKS.most - 1)]),
    ],
)
def test_parse_reads_every_form(text: str, tasks: Sequence[Task]) -> None:
    assert Machine.parse(text) == Machine(tuple(tasks))


@pytest.mark.parametrize(("preset", "text"), PRESETS.items())
def test_presets_have_their_devices(preset: str, text: str) -> None:
    assert Machine.parse(f" {preset} ") == Machine.parse(text)


def test_this_is_the_current_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "local_gpus", lambda: 3)
    assert Machine.parse("this") == Machine.local(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no devices"),
        (" ; ", "names no devices"),
        ("dgx1", "'dgx1' is not a preset, 'dgx-1' is"),
        ("dgx1*2", "'dgx1' is not a preset, 'dgx-1' is"),
        ("thiss", "is not a preset, 'this' is"),
        ("gpu*2; gpu*2", "'gpu*2' names no job"),
        ("ps*2; gpu", "'gpu' names no job"),
        ("2*gpu", "'2*gpu' is not a group of tasks"),
        (": gpu", "': gpu' is not a group of tasks"),
        ("worker*2: tpu*8", "'tpu*8' is not a list of cpu*N and gpu*N"),
        ("worker*2:", "'' is not a list of cpu*N and gpu*N"),
        ("worker: gpu*2, gpu*2", "'gpu*2, gpu*2' is not a list of cpu*N and gpu*N"),
        ("cpu*0, gpu*1", f"a task has at least 1 CPU, and at most {GPUS.most} of each"),
        (f"gpu*{GPUS.most + 1}", f"a task has at least 1 CPU, and at most {GPUS.most} of each"),
        ("ps*0", f"a job has between 1 and {TASKS.most} tasks"),
        (f"ps*{TASKS.most + 1}", f"a job has between 1 and {TASKS.most} tasks"),
        (f"ps/task:{TASKS.most}", f"a job has between 1 and {TASKS.most} tasks"),
        (f"ps/task:{TASKS.most - 1}; ps*1", f"a job has between 1 and {TASKS.most} tasks"),
        ("w*2; w/task:1: gpu", "/job:w/task:1 is named twice"),
        ("w/task:3; ps*4; w/task:3", "/job:w/task:3 is named twice"),
        ("w/task:3*2", "'w/task:3*2' is not a group of tasks"),
        ("w/task:", "'w/task:' is not a group of tasks"),
        ("w/job:3", "'w/job:3' is not a group of tasks"),
        ("w*2 gpu", "'w*2 gpu' is not a group of tasks"),
        ("ps*1; worker", "'worker' lacks a number of tasks, write worker*1"),
        ("zzz", "'zzz' lacks a number of tasks, write zzz*1"),
        ("TF_CONFG", "is not a preset, 'TF_CONFIG' is"),
        ("chief", "'chief' lacks a number of tasks, write chief*1"),
        ("ps*1; dgx1", "'dgx1' is not a preset, 'dgx-1' is"),
        ("ps*1; dgx-1", "'dgx-1' is not a group of tasks"),
        ("w*2: dgx1", "'dgx1' is not a list of cpu*N and gpu*N"),
        ("w*2: g2-2-workers", "'g2-2-workers' is not a list of cpu*N and gpu*N"),
        ("w*2: this", "'this' is not a list of cpu*N and gpu*N"),
        ("master=w/task:0", "names no devices"),
        ("w*2; master=w/task:2", "requests /job:w/task:2, but the job w has tasks 0 and 1"),
        ("w*2; master=v/task:0", "requests /job:v, but the machine has only /job:w"),
        ("gpu*2; master=w/task:0", "names a master, and is one host"),
        ("gpu*2; master=localhost/task:0", "names a master, and is one host"),
        ("master=localhost/task:0; localhost*1: gpu", "names a master, and is one host"),
        ("w*2; master=w/task:0; master=w/task:1", "names two masters"),
        ("master=w/task:1; w*2; master=w/task:1", "names two masters"),
        ("w*2; master=w", "'master=w' is not a group of tasks"),
        ("w*2; master=w/task:0: gpu", "'master=w/task:0: gpu' is not a group of tasks"),
    ],
)
def test_parse_errors_name_the_mistake(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Machine.parse(text)
    error = caught.value
    assert (error.object, error.message, error.fix) == (f"machine '{text}'", message, FIX)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("gpuu*4", "gpu*4"),
        ("gpus * 4 ", "gpu*4"),
        ("GPUS*4", "gpu*4"),
        ("gup*2", "gpu*2"),
        ("gp*2", "gpu*2"),
        ("gpu4", "gpu*4"),
        ("gpux4", "gpu*4"),
        ("gpuu", "gpu*1"),
        ("cpus*2", "cpu*2"),
        ("tpu*8", "gpu*8"),
        ("ps*2; gpuu*4", "gpu*4"),
    ],
)
def test_a_misspelled_device_is_an_error(text: str, device: str) -> None:
    with pytest.raises(UsageError) as caught:
        Machine.parse(text)
    job = text.split(";")[-1].split("*")[0].strip()
    count = device.partition("*")[2]
    assert str(caught.value) == (
        f"machine '{text}': '{job}' is not a type of device; did you mean '{device}'? "
        f"A job of that name is written '{job}*{count}: cpu*1'"
    )
    assert Machine.parse(f"{job}*{count}: cpu*1").jobs == {job: list(range(int(count)))}


@pytest.mark.parametrize(
    "job", ["ps", "worker", "workers", "chief", "master", "eval", "data", "store", "p", "w", "up"]
)
def test_a_job_name_unlike_devices(job: str) -> None:
    assert Machine.parse(f"{job}*2").jobs == {job: [0, 1]}


@given(st.text() | st.text("psgucworkethi*:;, 0129/"))
def test_parse_raises_nothing_but_usage_errors(text: str) -> None:
    machine = None
    with suppress(UsageError):
        machine = Machine.parse(text)
    assert machine is None or Machine.parse(str(machine)) == machine


SPEC = {"worker": ["a:1", "b:1"], "ps": {7: "c:1", 2: "d:1"}, "chief": ["e:1"], "data": ["f:1"]}
OF_SPEC = (
    *(task("worker", index, gpus=3) for index in (0, 1)),
    *(task("ps", index) for index in (2, 7)),
    task("chief", 0, gpus=3),
    task("data", 0),
)


class Spec:
    """The dictionary form of a tf.train.ClusterSpec."""

    def as_dict(self) -> dict[str, Any]:
        return SPEC


@pytest.mark.parametrize("spec", [SPEC, Spec()], ids=["mapping", "ClusterSpec"])
def test_workers_and_the_chief_of_a_cluster_have_gpus(spec: Mapping[str, Any] | Spec) -> None:
    assert Machine.of_cluster(spec, 3).tasks == OF_SPEC


def test_workers_of_a_cluster_have_two_gpus() -> None:
    machine = Machine.of_cluster({"worker": ["a:1"]})
    assert (
        machine
        == Machine.of_cluster({"worker": ["a:1"]}, gpus=2)
        == Machine.parse("worker: gpu*2")
    )


def test_a_cluster_spec_reads_back() -> None:
    machine = Machine.of_cluster(SPEC)
    assert str(machine) == (
        "worker*2: gpu*2; ps/task:2: cpu*1; ps/task:7: cpu*1; chief*1: gpu*2; data*1: cpu*1"
    )
    assert Machine.parse(str(machine)) == machine


def test_of_cluster_refuses_other_values() -> None:
    with pytest.raises(
        InputError, match=r"^the ClusterSpec: the job ps lacks a list of addresses"
    ):
        Machine.of_cluster({"ps": []})


@pytest.mark.parametrize(
    ("tasks", "last"),
    [
        ({TASKS.most: "a:1"}, TASKS.most),
        ({"99999": "a:1", "3": "b:1"}, 99_999),
        ([f"a{index}:1" for index in range(TASKS.most + 1)], TASKS.most),
    ],
    ids=["first beyond", "far beyond", "a list"],
)
def test_of_cluster_refuses_unknown_tasks(
    monkeypatch: pytest.MonkeyPatch, tasks: Sequence[str] | Mapping[str | int, str], last: int
) -> None:
    spec = {"worker": ["w:1"], "ps": tasks, "data": ["d:1"]}
    with pytest.raises(InputError) as caught:
        Machine.of_cluster(spec)
    assert str(caught.value) == f"/job:ps/task:{last}: a job has at most 10000 tasks"

    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": spec}))
    with pytest.raises(InputError) as caught:
        Machine.parse("TF_CONFIG")
    assert str(caught.value) == f"/job:ps/task:{last}: a job has at most 10000 tasks"


def test_the_largest_task_index() -> None:
    machine = Machine.of_cluster({"ps": {TASKS.most - 1: "a:1"}})
    assert str(machine) == "ps/task:9999: cpu*1"
    assert Machine.parse(str(machine)) == machine


@pytest.mark.parametrize("gpus", [0, GPUS.most + 1])
def test_of_cluster_refuses_gpus_of_unknown_tasks(gpus: int) -> None:
    with pytest.raises(UsageError, match=f"^{gpus} GPUs: one host has between 1 and 256"):
        Machine.of_cluster(SPEC, gpus)


@pytest.mark.parametrize("text", ["TF_CONFIG", " TF_CONFIG\n"])
def test_the_cluster_of_tf_config(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": SPEC}))
    assert Machine.parse(text, 3).tasks == OF_SPEC
    assert Machine.parse(text).towers == 2


def test_tf_config_without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(InputError, match=r"^TF_CONFIG describes no cluster"):
        Machine.parse("TF_CONFIG")


def test_the_text_form_has_the_number_of_gpus() -> None:
    assert Machine.parse("worker*1: gpu", 3) == Machine.parse("worker*1: gpu*1")


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
def test_smallest_has_the_requested_jobs(requested: Sequence[str], text: str) -> None:
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
def test_smallest_has_requested_devices_only(requested: Sequence[Device]) -> None:
    machine = Machine.smallest(requested, 2)
    assert all(machine.has(device) for device in requested)
    last = {task.job: task.index for task in machine.tasks}
    asked = {
        job: max(device.task or 0 for device in requested if device.job == job) for job in last
    }
    assert last == asked


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        (["/job:worker/task:0/gpu:0", "/job:ps/task:0"], "ps*1: cpu*1; worker*2: gpu*1"),
        (["/job:worker/task:1/device:GPU:*"], "ps*1: cpu*1; worker*2: gpu*1"),
        (["/job:worker/task:0/gpu:0", "/gpu:1"], "ps*1: cpu*1; worker*2: gpu*2"),
        (["/job:worker/task:0", "/cpu:0"], "ps*1: cpu*1; worker*2: gpu*2"),
    ],
)
def test_one_gpu_for_each_task_by_default(requested: Sequence[str], text: str) -> None:
    machine = Machine.parse("ps*1; worker*2: gpu*2; master=worker/task:1")

    found = machine.with_one_gpu_each(map(Device.parse, requested))

    assert str(found) == f"{text}; master=worker/task:1"


def test_a_host_keeps_its_gpus() -> None:
    assert Machine.local(2).with_one_gpu_each([Device.parse("/gpu:0")]) == Machine.local(2)


def test_devices_are_whole_names_in_the_order_of_the_tasks() -> None:
    machine = Machine.parse("ps*1; worker*2: gpu*2")
    assert [str(device) for device in machine.devices if device.job == "ps"] == [
        "/job:ps/replica:0/task:0/device:CPU:0"
    ]
    assert [str(device) for device in machine.gpus] == [
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
def test_has_matches_patterns(pattern: str, expected: bool) -> None:
    assert Machine.parse("ps*1; worker*2: gpu*2").has(Device.parse(pattern)) == expected


@pytest.mark.parametrize(
    ("text", "is_local"), [("gpu*2", True), ("worker*1: gpu*2", False), ("localhost*2", False)]
)
def test_is_local(text: str, is_local: bool) -> None:
    assert Machine.parse(text).is_local == is_local


@pytest.mark.parametrize(
    ("machine", "towers"),
    [("gpu*4", 4), ("cpu*2", 1), ("ps*2; worker*8: gpu*3", 3), ("a: gpu*2; b: gpu*5", 5)],
)
def test_a_program_builds_a_tower_for_each_gpu_of_a_task(machine: str, towers: int) -> None:
    assert Machine.parse(machine).towers == towers


@pytest.mark.parametrize(
    ("text", "master"),
    [
        ("gpu*2", ("localhost", 0)),
        ("ps*2; worker*2; chief*1", ("chief", 0)),
        ("ps*2; worker/task:3; worker/task:1", ("worker", 1)),
        ("store*2; data*2", ("data", 0)),
        ("chief*1; worker*2; master=worker/task:1", ("worker", 1)),
        (" master = ps/task:3 ; worker*2; ps/task:3", ("ps", 3)),
        ("master*2; worker*1; master=master/task:1", ("master", 1)),
        ("worker*1; master=worker/task:0", ("worker", 0)),
    ],
)
def test_the_master_task(text: str, master: tuple[str, int]) -> None:
    task = Machine.parse(text).master
    assert (task.job, task.index) == master


def test_an_explicit_master_is_written() -> None:
    assert str(Machine.parse("master=w/task:1; w*2")) == "w*2: cpu*1; master=w/task:1"
    assert Machine.parse("w*2").stated_master is None


@pytest.mark.parametrize(
    ("task", "stated", "end"),
    [
        ({"type": "worker", "index": 1}, ("worker", 1), "; master=worker/task:1"),
        ({"type": "ps", "index": "7"}, ("ps", 7), "; master=ps/task:7"),
        ({"type": "evaluator", "index": 0}, None, "; data*1: cpu*1"),
        (None, None, "; data*1: cpu*1"),
    ],
)
def test_the_master_is_the_own_task_of_tf_config(
    monkeypatch: pytest.MonkeyPatch,
    task: Mapping[str, str | int] | None,
    stated: tuple[str, int] | None,
    end: str,
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": SPEC, "task": task}))

    machine = Machine.parse("TF_CONFIG")

    assert machine.stated_master == stated
    assert str(machine).endswith(end)
    assert Machine.parse(str(machine)) == machine


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("gpu*2", {"localhost": [0]}),
        ("ps*2; worker*1: gpu; ps*1: gpu", {"ps": [0, 1, 2], "worker": [0]}),
        ("worker/task:3; ps/task:1; worker/task:7", {"worker": [3, 7], "ps": [1]}),
    ],
)
def test_jobs_are_in_the_order_of_the_text(text: str, jobs: Mapping[str, Sequence[int]]) -> None:
    found = Machine.parse(text).jobs
    assert list(found.items()) == list(jobs.items())


CLUSTER = "ps*1; worker*3: gpu*1; eval/task:2: gpu*1"
CORRECT_OR_DESCRIBE = (
    'correct the name, or describe a machine that has it: --machine "ps*2; worker*8: gpu*4"'
)


@pytest.mark.parametrize(
    ("machine", "device", "words", "fix"),
    [
        (CLUSTER, "", "", CORRECT_OR_DESCRIBE),
        (CLUSTER, "/task:9/gpu:7", "", CORRECT_OR_DESCRIBE),
        (CLUSTER, "/job:worker", "", CORRECT_OR_DESCRIBE),
        (CLUSTER, "/job:worker/task:2/gpu:7", "", CORRECT_OR_DESCRIBE),
        (CLUSTER, "/job:eval/task:2", "", CORRECT_OR_DESCRIBE),
        (
            CLUSTER,
            "/job:workers/task:0/gpu:0",
            "requests /job:workers, but the machine has only /job:ps, /job:worker and /job:eval",
            "did you mean /job:worker?",
        ),
        (
            CLUSTER,
            "/job:zzz",
            "requests /job:zzz, but the machine has only /job:ps, /job:worker and /job:eval",
            CORRECT_OR_DESCRIBE,
        ),
        (
            CLUSTER,
            "/job:worker/task:3/cpu:0",
            "requests /job:worker/task:3, but the job worker has tasks 0 to 2",
            CORRECT_OR_DESCRIBE,
        ),
        (
            CLUSTER,
            "/job:ps/task:1",
            "requests /job:ps/task:1, but the job ps has task 0 alone",
            CORRECT_OR_DESCRIBE,
        ),
        (
            CLUSTER,
            "/job:eval/task:0",
            "requests /job:eval/task:0, but the job eval has task 2 alone",
            CORRECT_OR_DESCRIBE,
        ),
        (
            "w/task:7; w/task:0",
            "/job:w/task:3",
            "requests /job:w/task:3, but the job w has tasks 0 and 7",
            CORRECT_OR_DESCRIBE,
        ),
        (
            "worker*1: gpu",
            "/job:ps",
            "requests /job:ps, but the machine has only /job:worker",
            CORRECT_OR_DESCRIBE,
        ),
        (
            "cpu*2, gpu*4",
            "/job:worker/gpu:0",
            "requests /job:worker, but the machine is a single host (cpu*2, gpu*4)",
            CORRECT_OR_DESCRIBE,
        ),
        (
            "gpu*1",
            "/job:localhos",
            "requests /job:localhos, but the machine is a single host (gpu*1)",
            "did you mean /job:localhost?",
        ),
        ("gpu*1", "/job:localhost/task:0/gpu:5", "", CORRECT_OR_DESCRIBE),
        (
            "gpu*1",
            "/job:localhost/task:1",
            "requests /job:localhost/task:1, but the job localhost has task 0 alone",
            CORRECT_OR_DESCRIBE,
        ),
    ],
)
def test_the_missing_job_or_task(machine: str, device: str, words: str, fix: str) -> None:
    assert Machine.parse(machine).lacks(Device.parse(device)) == words
    assert Machine.parse(machine).fix_for(Device.parse(device)) == fix


@pytest.mark.parametrize("text", ["localhost/task:3", "localhost/task:3: gpu*2"])
def test_a_localhost_that_is_not_the_first_task_reads_back(text: str) -> None:
    machine = Machine.parse(text)
    assert Machine.parse(str(machine)) == machine


def test_a_cluster_of_one_localhost_is_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"type": "localhost", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"localhost": ["a:1"]}, "task": own}))
    assert Machine.parse("TF_CONFIG") == Machine.local(0)


@pytest.mark.parametrize("text", ["worker", "workers"])
def test_a_job_alone_is_not_a_misspelled_preset(text: str) -> None:
    with pytest.raises(UsageError, match=rf"lacks a number of tasks, write {text}\*1"):
        Machine.parse(text)


def test_the_title_names_the_setting_that_hides_gpus() -> None:
    limit = GpuLimit(1, "CUDA_VISIBLE_DEVICES='0'")

    assert Machine.local(4).limited([limit]).title == (
        "gpu*1, as CUDA_VISIBLE_DEVICES='0' hides 3 of 4 GPUs"
    )
    assert Machine.local(4).title == "gpu*4"


@pytest.mark.parametrize(
    ("session", "gpus"),
    [
        ({"device_count": {"GPU": 1}}, 1),
        ({"device_count": {"GPU": 0}}, 0),
        ({"gpu_options": {"visible_device_list": "5"}}, 1),
        ({"gpu_options": {"visible_device_list": " 3, 2,"}}, 2),
        ({"device_count": {"GPU": 3}, "gpu_options": {"visible_device_list": "0"}}, 1),
        ({"device_count": {"GPU": 9}, "gpu_options": {"visible_device_list": ""}}, 4),
        ({"device_count": {"CPU": 1}, "gpu_options": {"allow_growth": True}}, 4),
        ({"device_count": 1, "gpu_options": "none"}, 4),
    ],
)
def test_a_session_may_hide_gpus_of_a_host(session: Mapping[str, Any], gpus: int) -> None:
    machine = Machine.local(4, cpus=2).limited(GpuLimit.of_session(session))

    assert machine == Machine.local(gpus, cpus=2)
    assert [gpu.index for gpu in machine.hidden_gpus] == list(range(gpus, 4))
    assert bool(machine.hidden_by) == (gpus < 4)
    assert [machine.hides(Device.parse(f"/gpu:{gpu}")) for gpu in range(5)] == [
        gpus <= gpu < 4 for gpu in range(5)
    ]


def test_a_session_hides_no_gpus_of_a_cluster() -> None:
    cluster = Machine.parse("ps*1; worker*2: gpu*2")
    assert cluster.limited([GpuLimit(1, "a setting")]) is cluster


LARGE = "exceeds the limit of 10,000 tasks of a machine"


def test_the_tasks_of_all_jobs_are_limited_together() -> None:
    assert len(Machine.parse("a*5000; b*5000").tasks) == TASKS.most
    with pytest.raises(UsageError, match=LARGE):
        Machine.parse("a*5000; b*5001")
    with pytest.raises(InputError, match=LARGE):
        Machine.of_cluster({f"j{job}": [f"a{job}:1"] for job in range(10_001)})
    with pytest.raises(InputError, match=f"^many.pb {LARGE}"):
        Machine.smallest((Device(f"j{job}", task=9999) for job in range(200)), 2, "many.pb")
    with pytest.raises(InputError, match=f"^a.log {LARGE}"):
        Machine.from_devices((Device(f"j{job}", 0, 0) for job in range(10_001)), "a.log")


def test_the_devices_of_all_tasks_are_limited_together() -> None:
    assert len(Machine.parse("a*1000: cpu*50, gpu*50").devices) == DEVICES.most
    with pytest.raises(UsageError, match="exceeds the limit of 100,000 devices of a machine"):
        Machine.parse("a*1000: cpu*50, gpu*50; b*1")


@pytest.mark.nightly
def test_time_grows_with_the_number_of_groups() -> None:
    check_linear(lambda size: Machine.parse("; ".join(["w*1"] * size)), 2000)
