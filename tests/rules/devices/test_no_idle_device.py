from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import on, program, variable
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.machines import GpuLimit
from placement_checks.core.missing import Missing
from placement_checks.core.placement import StepOps
from placement_checks.core.strategies import Strategy
from placement_checks.rules.devices.no_idle_device import NoIdleDevice

_APPLY = "ResourceApplyGradientDescent"


def busy(*gpus: str, machine: str | None = "gpu*2") -> Placement:
    """A MatMul on each of the GPUs."""
    ops = (op(f"op{number}", "MatMul", gpu, gpu) for number, gpu in enumerate(gpus))
    return placement(*ops, machine=machine)


def test_kept(snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(busy("/gpu:0", "/gpu:1", "/gpu:1", "/cpu:0"))
    assert verdict == Verdict("no-idle-device", "kept", "assigned", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(busy("/gpu:0", "/gpu:0", "/cpu:0", "/cpu:0", "/cpu:0"))
    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="/device:GPU:1",
            op="",
            evidence="assigned",
            expected="ops that compute",
            found="none",
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_ops_of_all_kinds_are_counted() -> None:
    ops = [op(f"op{type}", type, "/gpu:0", "/gpu:0") for type in ("Add", "MatMul", "Mul")]
    note = NoIdleDevice().judge(placement(*ops, machine="gpu*1")).note

    assert note == "/device:GPU:0 computes with 3 ops"


def test_allow_must_name_devices() -> None:
    with pytest.raises(InputError, match="'gpu0' is not part of a device name"):
        NoIdleDevice(allow=("gpu0",))


def test_all_gpus_idle(snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(busy("/cpu:0"))
    assert messages(verdict) == snapshot


def test_if_all_losses_are_on_one_gpu_its_scope_is_named(snapshot: SnapshotAssertion) -> None:
    """The finding lists the other losses."""
    graph = placement(
        op("x", "Placeholder", "/gpu:0", "GPU:0"),
        *(op(f"tower_{i}/loss", "Mean", "/gpu:0", "GPU:0", "x") for i in (0, 1)),
        machine="gpu*3",
        step=StepOps(objectives=["tower_0/loss:0", "tower_1/loss:0"]),
        lines={f"tower_{i}/loss": "main.py:9 net.py:3" for i in (0, 1)},
        device_lines={"tower_1/loss": "main.py:7"},
    )

    one, other = NoIdleDevice().judge(graph).findings

    assert (one.where, one.device_line) == ("net.py:3", "main.py:7")
    assert (one.alike, one.fix) == (other.alike, other.fix)
    assert messages(one) == snapshot


def test_the_scope_of_most_ops_of_towers_is_named() -> None:
    """Not the scope around the loop over towers, with a model that is not trained and updates."""
    towers = [
        on(0, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/w/read") for i in (0, 1)
    ]
    unused = [on(0, f"serial/{i}", "MatMul", "tower_0/x", "tower_0/w/read") for i in range(9)]
    graph = program(
        *unused,
        *towers,
        *(on(0, f"tower_{i}/loss", "Mean", f"tower_{i}/w/MatMul") for i in (0, 1)),
        on(0, "update/w", "ResourceApplyGradientDescent", "w", "rate", "mean/w"),
        device_lines={
            **dict.fromkeys(["update/w", *(each.name for each in unused)], "main.py:1"),
            **{each.name: "net.py:2" for each in towers},
        },
    )

    (finding,) = NoIdleDevice().judge(graph).findings

    assert finding.device_line == "net.py:2"


def test_without_requests_for_gpus_the_placer_chose(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        op("a", "MatMul", "", "GPU:0"), step=StepOps(objectives=["a"]), lines={"a": "main.py:9"}
    )

    (finding,) = NoIdleDevice().judge(graph).findings

    assert finding.where is None
    assert messages(finding) == snapshot


def test_gpus_of_a_cluster_are_distinguished_by_task() -> None:
    graph = busy("/job:worker/task:0/gpu:0", machine="ps*1; worker*2: gpu*1")
    (finding,) = NoIdleDevice().judge(graph).findings
    assert finding.object == "/job:worker/replica:0/task:1/device:GPU:0"


@pytest.mark.parametrize(
    ("type", "computes"),
    [
        ("Add", True),
        ("ApplyGradientDescent", True),
        ("VarHandleOp", False),
        ("VariableV2", False),
        ("Assign", False),
        ("AssignVariableOp", False),
        ("Const", False),
        ("Identity", False),
        ("IdentityN", False),
        ("IsVariableInitialized", False),
        ("Placeholder", False),
        ("PlaceholderWithDefault", False),
        ("ReadVariableOp", False),
        ("VarIsInitializedOp", False),
        ("NoOp", False),
        ("AssignAdd", True),
        ("Cast", True),
        ("PlaceholderV2", False),
        ("VariableShape", False),
        ("RefIdentity", False),
        ("Enter", False),
        ("Switch", False),
        ("Merge", False),
        ("NextIteration", False),
    ],
)
def test_which_ops_compute(type: str, computes: bool) -> None:
    graph = placement(op("a", type, "/gpu:0", "GPU:0"), machine="gpu*1")
    assert NoIdleDevice().judge(graph).state == ("kept" if computes else "broken")


def test_kept_where_ops_are_placed_on_gpus_that_they_did_not_request() -> None:
    graph = placement(op("a", "MatMul", "", "GPU:0"), op("b", "MatMul", "/gpu:7", "GPU:1"))
    assert NoIdleDevice().judge(graph).state == "kept"


def gpu(job: str, index: int) -> str:
    return f"/job:{job}/replica:0/task:0/device:GPU:{index}"


@pytest.mark.parametrize(
    ("allow", "found"),
    [
        (("/gpu:1",), [gpu("eval", 0), gpu("worker", 0)]),
        (("/job:eval",), [gpu("worker", 0), gpu("worker", 1)]),
        (("/job:worker/gpu:0", "/job:eval/gpu:1"), [gpu("eval", 0), gpu("worker", 1)]),
        (("/cpu:0",), [gpu(job, index) for job in ("eval", "worker") for index in (0, 1)]),
    ],
)
def test_allow_takes_patterns_of_devices(allow: tuple[str, ...], found: Sequence[str]) -> None:
    graph = busy("/cpu:0", machine="eval*1: gpu*2; worker*1: gpu*2")
    assert [finding.object for finding in NoIdleDevice(allow).judge(graph).findings] == found


def test_an_allowed_gpu_that_computes_is_named() -> None:
    (finding,) = NoIdleDevice(allow=("/gpu:0",)).judge(busy("/gpu:0")).findings

    assert finding.message == "/device:GPU:1 computes nothing; /device:GPU:0 computes with 1 op"
    assert (
        finding.consequence == "the step is no faster than on one GPU, as the other does nothing"
    )


@pytest.mark.parametrize(
    ("name", "replicas", "fix"),
    [
        ("MirroredStrategy", "0", "name all GPUs in the list of devices of MirroredStrategy, or"),
        ("CentralStorageStrategy", "0", "name all GPUs in the list of devices of Central"),
        ("OneDeviceStrategy", "0", "use tf.distribute.MirroredStrategy(), which"),
        ("MirroredStrategy", "01", "run the training step on all replicas: strategy.run("),
        ("MultiWorkerMirroredStrategy", "0", "build tower i under"),
    ],
)
def test_the_fix_for_a_strategy(name: str, replicas: str, fix: str) -> None:
    devices = [Device.parse(f"/device:GPU:{index}") for index in replicas]
    graph = replace(busy("/gpu:0"), strategy=Strategy(name, devices))

    (finding,) = NoIdleDevice().judge(graph).findings

    assert finding.fix.startswith(fix)


def test_note_is_short_on_large_machines(snapshot: SnapshotAssertion) -> None:
    assert messages(NoIdleDevice().judge(busy("/gpu:0", machine="gpu*16"))) == snapshot


@pytest.mark.parametrize(
    "work",
    [
        [1, 1, 1, 2],
        [1, 1, 1, 1, 1],
        [2, 2, 2, 2, 2],
        [0, 0, 0, 0, 0],
        [3, 1, 2, 1, 1],
    ],
)
def test_the_note_has_four_gpus_one_by_one(
    work: Sequence[int], snapshot: SnapshotAssertion
) -> None:
    ops = [
        op(f"{index}/{number}", "MatMul", f"/gpu:{index}", f"GPU:{index}")
        for index, count in enumerate(work)
        for number in range(count)
    ]
    assert messages(NoIdleDevice().judge(placement(*ops, machine=f"gpu*{len(work)}"))) == snapshot


@pytest.mark.parametrize(
    ("graph", "allow"),
    [
        pytest.param(placement(placer=None), (), id="no placer"),
        pytest.param(placement(assigned=Missing("it died")), (), id="unplaced"),
        pytest.param(busy("/cpu:0", machine="cpu*2"), (), id="no GPU"),
        pytest.param(busy("/cpu:0"), ("/gpu",), id="all GPUs allowed"),
        pytest.param(busy("/gpu:0", machine=None), (), id="no machine"),
    ],
)
def test_not_checked(
    graph: Placement, allow: tuple[str, ...], snapshot: SnapshotAssertion
) -> None:
    verdict = NoIdleDevice(allow).judge(graph)
    assert verdict == Verdict("no-idle-device", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


WORKERS = "ps*1; worker*3: gpu*2"


def between(*ops: Op, variables: str = "ps", machine: str = WORKERS, **more: Any) -> Placement:
    """A graph that one worker builds for itself, with a variable on a job."""
    at = f"/job:{variables}/task:0/cpu:0"
    return placement(op("w", "VarHandleOp", at, at), *ops, machine=machine, **more)


def of_task(number: int, *gpus: int, job: str = "worker", named: bool = True) -> list[Op]:
    """A MatMul on each of the GPUs of a task, which the request names or leaves open."""
    return [
        op(
            f"{job}{number}/{gpu}",
            "MatMul",
            f"/job:{job}/task:{number}/gpu:{gpu}" if named else f"/job:{job}/gpu:{gpu}",
            f"/job:{job}/task:{number}/gpu:{gpu}",
            "w",
        )
        for gpu in gpus
    ]


def worker(task: int, index: int) -> str:
    return f"/job:worker/replica:0/task:{task}/device:GPU:{index}"


def test_the_gpus_of_other_tasks_are_left_to_their_graphs(snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(between(*of_task(1, 0, 1)))
    assert verdict == Verdict("no-idle-device", "kept", "assigned", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_one_gpu_of_another_task(snapshot: SnapshotAssertion) -> None:
    graph = between(*of_task(0, 0), machine="ps*1; worker*2: gpu*1")
    assert messages(NoIdleDevice().judge(graph)) == snapshot


def test_an_idle_gpu_of_the_own_task_is_a_finding(snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(between(*of_task(1, 1)))

    assert messages(verdict) == snapshot


ALL_OTHERS = [worker(task, index) for task in (1, 2) for index in (0, 1)]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(between(*of_task(0, 0, 1, named=False)), id="ops leave the task open"),
        pytest.param(
            between(*of_task(0, 0), *of_task(0, 1, named=False)), id="one op leaves the task open"
        ),
        pytest.param(
            between(*of_task(0, 0, 1), variables="worker"), id="variables with the worker"
        ),
        pytest.param(
            placement(*of_task(0, 0, 1), machine=WORKERS),
            id="no variables",
        ),
        pytest.param(
            placement(op("w", "VarHandleOp", "/job:ps"), *of_task(0, 0, 1), machine=WORKERS),
            id="no variable that was placed",
        ),
    ],
)
def test_the_gpus_of_other_tasks_are_idle(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(graph)

    assert [finding.object for finding in verdict.findings] == ALL_OTHERS
    assert messages(verdict) == snapshot


def test_further_variables_on_the_worker_make_no_difference() -> None:
    at = "/job:worker/task:0/cpu:0"
    graph = between(op("local", "VarHandleOp", at, at), *of_task(0, 0, 1))
    assert NoIdleDevice().judge(graph).state == "kept"


@pytest.mark.parametrize(("master", "state"), [(0, "kept"), (1, "broken")])
def test_ops_without_a_task_belong_to_the_master(master: int, state: str) -> None:
    """A program that makes a server is known by its task."""
    machine = f"{WORKERS}; master=worker/task:{master}"
    graph = between(*of_task(0, 0), *of_task(0, 1, named=False), machine=machine)
    assert NoIdleDevice().judge(graph).state == state


def test_a_graph_for_two_tasks_is_judged_on_all(snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(between(*of_task(0, 0, 1), *of_task(1, 0, 1)))

    assert [finding.object for finding in verdict.findings] == [worker(2, 0), worker(2, 1)]
    assert messages(verdict) == snapshot


def test_every_job_has_its_own_task(snapshot: SnapshotAssertion) -> None:
    """A chief that computes on all its tasks, and a worker that names one."""
    machine = "ps*1; chief*2: gpu*1; worker*2: gpu*1"
    open_chief = of_task(0, 0, job="chief", named=False)

    verdict = NoIdleDevice().judge(between(*open_chief, *of_task(1, 0), machine=machine))

    assert [finding.object for finding in verdict.findings] == [
        "/job:chief/replica:0/task:1/device:GPU:0"
    ]
    assert messages(verdict) == snapshot


def test_ops_without_computation_name_no_task() -> None:
    """An op that is not on a GPU names none either."""
    graph = between(
        *of_task(1, 0, 1),
        op("c", "Const", "/job:worker/gpu:0", "/job:worker/task:0/gpu:0"),
        op("d", "MatMul", "/job:worker", "/job:worker/task:0/cpu:0"),
    )
    assert NoIdleDevice().judge(graph).state == "kept"


def test_all_gpus_are_judged_if_none_computes() -> None:
    graph = between(*of_task(0, 0, job="ps"), machine="ps*1; worker*2: gpu*1")
    assert len(NoIdleDevice().judge(graph).findings) == 2


def test_allowed_gpus_name_no_task(snapshot: SnapshotAssertion) -> None:
    graph = between(*of_task(0, 0), *of_task(1, 0, 1))

    verdict = NoIdleDevice(allow=("/job:worker/task:0",)).judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_log_that_names_no_other_gpus_is_not_judged(snapshot: SnapshotAssertion) -> None:
    verdict = NoIdleDevice().judge(
        between(*of_task(1, 0, 1), all_devices=Missing("a log names only devices with ops"))
    )
    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_a_visible_idle_gpu_is_found_even_if_there_may_be_more() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:0", "GPU:0"),
        machine="gpu*2",
        all_devices=Missing("the log was cut"),
    )
    verdict = NoIdleDevice().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["/device:GPU:1"]


def test_without_a_visible_idle_gpu_there_may_be_an_invisible_one(
    snapshot: SnapshotAssertion,
) -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:0", "GPU:0"),
        machine="gpu*1",
        all_devices=Missing("the log was cut"),
    )

    verdict = NoIdleDevice().judge(graph)
    assert verdict == Verdict("no-idle-device", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_for_many_gpus_the_note_has_the_fewest_and_the_most_ops(
    snapshot: SnapshotAssertion,
) -> None:
    """One of them has less to do than the others."""
    graph = busy("/gpu:0", *(f"/gpu:{i}" for i in (1, 2, 3, 4) for _ in range(3)), machine="gpu*5")

    assert messages(NoIdleDevice().judge(graph)) == snapshot


@pytest.mark.parametrize("held", [0, 1, 2])
def test_a_gpu_that_only_serves_towers_on_another(held: int, snapshot: SnapshotAssertion) -> None:
    """They are as many as there are GPUs, and take turns on the first."""
    names = ["a", "b"]
    graph = program(
        *(variable(name, at="GPU:1") for name in names[:held]),
        *(on(1, f"update/{name}", _APPLY, name, "rate", f"mean/{name}") for name in names),
        gpus=(0, 0),
        variables=names,
        machine="gpu*2",
    )

    (finding,) = NoIdleDevice().judge(graph).findings

    assert (finding.object, finding.expected) == ("/device:GPU:1", "a part of a loss")
    assert messages(finding) == snapshot
    assert NoIdleDevice(allow=("/gpu:1",)).judge(graph).state == "kept"


def test_a_gpu_that_only_serves_towers_on_several_gpus(snapshot: SnapshotAssertion) -> None:
    graph = program(
        on(2, "update/w", _APPLY, "w", "rate", "mean/w"), gpus=(0, 1, 1), machine="gpu*3"
    )

    assert messages(NoIdleDevice().judge(graph)) == snapshot


def hiding(placement: Placement, gpus: int) -> Placement:
    """The placement on a machine of which a setting leaves a number of GPUs."""
    assert placement.machine is not None
    limited = placement.machine.limited([GpuLimit(gpus, "CUDA_VISIBLE_DEVICES='0'")])
    return replace(placement, machine=limited)


def test_a_hidden_gpu_is_idle(snapshot: SnapshotAssertion) -> None:
    graph = hiding(busy("/gpu:0"), 1)

    assert messages(NoIdleDevice().judge(graph)) == snapshot
    assert NoIdleDevice(allow=("/gpu:1",)).judge(graph).state == "kept"


def test_all_gpus_are_hidden() -> None:
    graph = hiding(busy("/cpu:0"), 0)
    objects = [finding.object for finding in NoIdleDevice().judge(graph).findings]

    assert objects == ["/device:GPU:0", "/device:GPU:1"]
    assert NoIdleDevice(allow=("/gpu",)).judge(graph).state == "not-checked"


def test_ops_that_lack_their_gpu_are_not_pinned_to_another() -> None:
    ops = [op("own", "MatMul", "/gpu:0", "/gpu:0"), op("other", "MatMul", "/gpu:7", "/gpu:0")]
    (finding,) = NoIdleDevice().judge(placement(*ops)).findings

    assert finding.ops == ("own",)
