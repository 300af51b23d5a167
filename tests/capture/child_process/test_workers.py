"""The workers of a program are captured one by one; errors name the worker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import tensorflow as tf
from support.builders import script
from support.workers import recorded_task, watched_coordinator

from placement_checks import watch
from placement_checks.capture.child_process import workers
from placement_checks.capture.eager.errors import EagerOnlyError
from placement_checks.capture.in_process.builder import build, record_eager_code
from placement_checks.capture.programs import load, load_for_one_gpu
from placement_checks.core.cluster_spec import RecordedServer, environment_of
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.placement import producer_of
from placement_checks.core.program import CapturedProgram, Program
from placement_checks.core.target import Script

TWO = {"worker": {0: "a:1", 1: "b:1"}}


def train() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = tf.Variable([1.0, 2.0], name="w", aggregation=tf.VariableAggregation.SUM)

    def replica() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w**2)
        w.assign_sub(tape.gradient(loss, w))

    tf.function(lambda: strategy.run(replica))()


def reads_its_task() -> None:
    json.loads(os.environ["TF_CONFIG"])["cluster"]


def resolves_its_cluster() -> None:
    tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


@pytest.mark.parametrize("program", [reads_its_task, resolves_its_cluster])
def test_a_function_that_reads_its_task_has_one(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[], None]
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(EagerOnlyError):
        build(Program.from_function(program), 1)


def alone(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    """Create the strategy of a worker with this TF_CONFIG."""
    monkeypatch.setenv("TF_CONFIG", config)
    with record_eager_code(Program("train", train), 1):
        tf.distribute.MultiWorkerMirroredStrategy()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "{'cluster': {}}",
            "TF_CONFIG is not JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}}',
            "TF_CONFIG has a cluster, but does not state the task of this process; "
            'add "task": {"type": "worker", "index": 0} next to "cluster"',
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
            "TF_CONFIG: its task is /job:worker/task:2, which the cluster lacks; "
            "the job has tasks 0 and 1",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "workers", "index": 0}}',
            "TF_CONFIG: its task is of the job workers, which the cluster lacks; "
            "did you mean 'worker'?",
        ),
    ],
)
def test_tf_config_that_names_no_task(
    monkeypatch: pytest.MonkeyPatch, config: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        alone(monkeypatch, config)
    assert str(caught.value) == message


def test_a_cluster_of_the_program_that_lacks_its_task() -> None:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=7
    )
    with record_eager_code(Program("train", train), 1), pytest.raises(InputError) as caught:
        tf.distribute.MultiWorkerMirroredStrategy(resolver)
    assert str(caught.value) == (
        "/job:worker/task:7 is not in the cluster of the program's server; "
        "the job worker has tasks 0 and 1"
    )


def test_no_cluster_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch, "{}")


def test_a_block_is_one_task_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of(TWO, "worker", 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught, watch(1, name="block", eager=True):
        train()
    assert str(caught.value) == (
        "block is one of several tasks, /job:worker/task:1, but a block runs as one task only; "
        'place the function that trains: place(train.main, machine="worker*2: gpu*2")'
    )


def test_eager_collectives_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of(TWO, "worker", 0).items():
        monkeypatch.setenv(name, value)
    with record_eager_code(Program("train", train), 1):
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        ones = strategy.run(lambda: tf.ones([2]))
        assert strategy.reduce("SUM", ones, axis=None).numpy().tolist() == [2.0, 2.0]


def test_additional_parameter_servers() -> None:
    def build() -> None:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        tf.distribute.ParameterServerStrategy(resolver)

    with pytest.raises(InputError) as caught:
        watched_coordinator(build, "chief*1; ps*9; worker*2: gpu*1")
    assert str(caught.value) == (
        "ParameterServerStrategy has 9 servers, but their number was unknown when TensorFlow "
        "started; "
        'name the cluster: --machine "chief*1; ps*9; worker*2: gpu*1"'
    )


@pytest.fixture(scope="module")
def first() -> CapturedProgram:
    return recorded_task(train, {"worker": [0, 1]}, "worker", 0, 1)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ("it raised ValueError: no such file", "it raised ValueError: no such file"),
        (
            "its process was ended by SIGKILL, before its first training step",
            "its process was ended by SIGKILL, before its first training step",
        ),
    ],
)
def test_a_failing_worker_is_named(
    monkeypatch: pytest.MonkeyPatch, first: CapturedProgram, failure: str, expected: str
) -> None:
    def watched(_script: Script, _gpus: int, environment: Mapping[str, str]) -> CapturedProgram:
        if json.loads(environment["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}:
            return first
        raise InputError("train.py:main", failure, "look at train.py:7")

    monkeypatch.setattr(workers, "capture_program", watched)
    with pytest.raises(InputError) as caught:
        workers.capture_workers(script("train.py:main"), 1, Machine.parse("worker*2: gpu*1"))
    assert str(caught.value) == (
        f"train.py:main: started as /job:worker/task:1, {expected}; look at train.py:7"
    )


@pytest.mark.parametrize(
    ("is_server", "expected"), [(True, "/job:worker/task:0"), (False, "a host without a cluster")]
)
def test_a_worker_that_is_always_the_same_task_is_refused(
    monkeypatch: pytest.MonkeyPatch, first: CapturedProgram, is_server: bool, expected: str
) -> None:
    def watched(_script: Script, _gpus: int, environment: Mapping[str, str]) -> CapturedProgram:
        is_first = json.loads(environment["TF_CONFIG"])["task"]["index"] == 0
        return first if is_first or is_server else replace(first, server=None)

    monkeypatch.setattr(workers, "capture_program", watched)
    with pytest.raises(InputError) as caught:
        workers.capture_workers(script("train.py:main"), 1, Machine.parse("worker*2: gpu*1"))
    assert str(caught.value) == (
        f"train.py:main: started as /job:worker/task:1, it trained as {expected}: it ignores "
        "the task in TF_CONFIG; read TF_CONFIG, as "
        "tf.distribute.cluster_resolver.TFConfigClusterResolver does, so that every worker can "
        "be captured"
    )


def test_each_worker_takes_its_own_gradients_of_the_same_variable(first: CapturedProgram) -> None:
    second = replace(first, server=RecordedServer(TWO, "worker", 1))

    placement = workers.join_workers([first, second]).requested

    one, other = placement.step.gradient_calls
    assert one.sources == other.sources == ["w"]
    assert one.weights == other.weights == [""]
    for call, is_renamed in ((one, False), (other, True)):
        names = {*call.objectives, *call.gradients[0], *call.ops}
        assert {name.startswith("worker_1/") for name in names} == {is_renamed}
        assert {producer_of(name) for name in names} <= placement.ops.keys()
    assert placement.step.backward == set(one.ops) | set(other.ops)
    assert placement.strategy is not None
    replica_of = placement.strategy.replica_of
    assert {replica_of[name] for name in one.ops} == {0}
    assert {replica_of[name] for name in other.ops} == {1}


def test_every_worker_is_captured_as_its_own_task(
    monkeypatch: pytest.MonkeyPatch, first: CapturedProgram
) -> None:
    cluster = {"chief": {0: "a:1"}, "worker": {0: "b:1", 1: "c:1"}, "evaluator": {0: "d:1"}}
    asked = []

    def watched(_script: Script, _gpus: int, environment: Mapping[str, str]) -> CapturedProgram:
        task = json.loads(environment["TF_CONFIG"])["task"]
        asked.append(f"{task['type']} {task['index']}")
        return replace(first, server=RecordedServer(cluster, task["type"], task["index"]))

    monkeypatch.setattr(workers, "capture_program", watched)
    machine = Machine.parse("chief*1: gpu*1; worker*2: gpu*1; evaluator*1")
    joined = workers.capture_workers(script("train.py:main"), 1, machine)

    assert asked == ["chief 0", "worker 0", "worker 1"]
    strategy = joined.requested.strategy
    assert strategy is not None
    assert [str(each.task_device) for each in strategy.replicas] == [
        "/job:chief/task:0",
        "/job:worker/task:0",
        "/job:worker/task:1",
    ]
    assert joined.notes[0].startswith("3 workers, each run until its first training step")


def test_a_host_has_no_cluster(monkeypatch: pytest.MonkeyPatch, first: CapturedProgram) -> None:
    found = []

    def watched(_script: Script, _gpus: int, environment: Mapping[str, str]) -> CapturedProgram:
        found.append(dict(environment))
        return replace(first, is_worker=False)

    monkeypatch.setattr(workers, "capture_program", watched)
    workers.capture_workers(script("train.py:main"), 2, Machine.parse("gpu*2"))
    workers.capture_workers(script("train.py:main"), 2, None)
    assert found == [{"TF_CONFIG": "{}"}, {}]


def test_one_gpu_is_the_only_worker(
    monkeypatch: pytest.MonkeyPatch, first: CapturedProgram
) -> None:
    """Programs count the workers in TF_CONFIG, and may fail without them."""
    numbers = []

    def watched(_script: Script, gpus: int, environment: Mapping[str, str]) -> CapturedProgram:
        config = json.loads(environment["TF_CONFIG"])
        cluster = {"worker": dict(enumerate(config["cluster"]["worker"]))}
        numbers.append((gpus, len(cluster["worker"])))
        server = RecordedServer(cluster, "worker", config["task"]["index"])
        return replace(first, server=server, asked_for_gpus=True)

    monkeypatch.setattr(workers, "capture_program", watched)
    captured = load(script("train.py"), 2, Machine.parse("worker*2: gpu*2"))
    single = load_for_one_gpu(captured)

    assert numbers == [(2, 2), (2, 2), (1, 1)]
    assert isinstance(single, CapturedProgram)
    assert single.requested.strategy is not None
    assert [str(each) for each in single.requested.strategy.replicas] == ["/device:GPU:0"]
