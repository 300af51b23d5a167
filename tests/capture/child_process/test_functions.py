"""Functions and programs with a `tf.function` as step, each in its own process."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.builders import script
from support.forked import run_forked, run_pytest_forked

from placement_checks.capture.programs import load, load_for_one_gpu
from placement_checks.core.errors import InputError
from placement_checks.core.program import CapturedProgram, Program
from placement_checks.core.target import Script
from placement_checks.targets.forms import resolve

TRAIN = """
import sys
import threading

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])
with strategy.scope():
    shared = tf.Variable(1.0, name="made_at_import")


def towers(num_gpus):
    with tf.device("/cpu:0"):
        w = tf.Variable([1.0], name="w")

    @tf.function
    def step(x):
        gradients = []
        for i in range(num_gpus):
            with tf.device(f"/gpu:{i}"), tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(w * x[i]))
            gradients.append(tape.gradient(loss, w))
        w.assign_sub(tf.add_n(gradients) / num_gpus)
        return loss

    step(tf.ones([num_gpus, 4]))


def main(num_gpus=2):
    towers(num_gpus)


def exits():
    towers(2)
    sys.exit(0)


def step_returned():
    w = tf.Variable([1.0], name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(w * x)
        w.assign_sub(tape.gradient(loss, w))

    return {"step": step, "args": (tf.ones([4]),), "policy": {"towers-alike": {"ops": 0.5}}}


def mirrored():
    def replica(x):
        with tf.GradientTape() as tape:
            loss = shared * x
        context = tf.distribute.get_replica_context()
        shared.assign_sub(context.all_reduce("sum", tape.gradient(loss, shared)))

    @tf.function
    def step(x):
        strategy.run(replica, args=(x,))

    step(tf.constant(1.0))


def eager():
    w = tf.Variable(1.0)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = w * w
        w.assign_sub(tape.gradient(loss, w))


def evaluates():
    @tf.function
    def predict(x):
        return x * 2.0

    predict(tf.constant(1.0))


def never_called():
    @tf.function
    def step(x):
        return x


def raises():
    with strategy.scope():
        w = tf.Variable(1.0)

    @tf.function
    def step(x):
        return w * x.no_such_name

    step(tf.constant(1.0))


def bug():
    tf.compat.v1.placeholder(tf.float32)
    return undefined


def for_graphs():
    x = tf.compat.v1.placeholder(tf.float32, [4])
    return float(x[0])


class Trainer:
    def train(self):
        towers(2)


@tf.function
def shared_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(shared * x)
    shared.assign_sub(tape.gradient(loss, shared))


def replicas():
    def replica(x):
        with tf.GradientTape() as tape:
            tape.gradient(shared * x, shared)

    strategy.run(replica, args=(1.0,))


def towers_in_threads():
    def tower(gpu):
        with tf.device(f"/gpu:{gpu}"):
            shared_step(tf.ones([4]))

    for gpu in (0, 1):
        thread = threading.Thread(target=tower, args=[gpu])
        thread.start()
        thread.join()


def in_thread():
    def loop():
        for _ in range(3):
            shared_step(tf.ones([4]))

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


if __name__ == "__main__":
    towers(int(sys.argv[1]))
    sys.exit(0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gpus_of(built: CapturedProgram) -> set[str]:
    asked = {str(op.requested) for op in built.requested.ops.values()}
    return {device for device in asked if "GPU" in device}


BOTH = {"/device:GPU:0", "/device:GPU:1"}


@pytest.mark.smoke
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "target",
    [
        "train.py:main",
        "train.py:exits",
        "train.py:towers(num_gpus={gpus})",
        "package.train:main",
        script("train.py", ("{gpus}",)),
        script("package.train", ("{gpus}",)),
        script("train.py:main", ("3",)),
    ],
    ids=str,
)
def test_a_function_is_captured_until_its_first_step(target: str | Script) -> None:
    built = load(resolve(target), 2)

    assert {variable.name for variable in built.requested.variables} == {"w"}
    assert gpus_of(built) == BOTH
    (note,) = built.notes or ["run until its first training step, step"]
    assert note.startswith("run until its first training step, step")


@pytest.mark.usefixtures("folder")
def test_the_function_receives_the_number_of_gpus() -> None:
    built = load(resolve("train.py:main"), 3)
    single = load_for_one_gpu(built)

    assert gpus_of(built) == BOTH | {"/device:GPU:2"}
    assert isinstance(single, CapturedProgram)
    assert gpus_of(single) == {"/device:GPU:0"}


SESSION = """
import tensorflow as tf

def train(num_gpus):
    w = tf.get_variable("w", [])
    gradients = []
    for i in range(num_gpus):
        with tf.device("/gpu:%d" % i):
            gradients += tf.gradients(tf.square(w), [w])
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.apply_gradients([(tf.add_n(gradients) / num_gpus, w)])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
"""


def test_a_function_that_trains_in_a_session_receives_the_number_of_gpus(folder: Path) -> None:
    (folder / "session.py").write_text(SESSION)

    single = load_for_one_gpu(load(script("session.py:train", v1=True), 3))

    assert isinstance(single, CapturedProgram)
    assert gpus_of(single) == {"/device:GPU:0"}


@pytest.mark.usefixtures("folder")
def test_variables_of_the_module_are_captured() -> None:
    built = load(resolve("train.py:mirrored"), 2)

    names = {variable.name for variable in built.requested.variables}
    assert names == {"made_at_import", "made_at_import/replica_1"}
    assert built.requested.strategy is not None
    assert built.requested.strategy.name == "MirroredStrategy"


@pytest.mark.usefixtures("folder")
def test_a_function_may_return_its_step() -> None:
    built = load(resolve("train.py:step_returned"), 2)

    assert built.step.policy == {"towers-alike": {"ops": 0.5}}
    assert [array.shape for array in built.fed.values()] == [(4,)]
    assert "AssignSubVariableOp" in {op.type for op in built.requested.ops.values()}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("target", ["train.py:in_thread", script("train.py:in_thread", limit=90)])
def test_a_step_in_a_thread_is_captured_with_its_variables(target: str | Script) -> None:
    """The thread does not have the default graph in which the function is built at first."""
    built = load(resolve(target), 2)

    assert "made_at_import" in {variable.name for variable in built.requested.variables}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "eager",
            " took gradients outside of any tf.function, 3 times: such a training "
            "step has no graph that could be checked; decorate the training step with "
            "@tf.function, or return it: "
            "{'step': train_step, 'args': (x, y)}",
        ),
        (
            "evaluates",
            " ended without a training step: it called 1 function, predict, but none takes "
            "gradients and updates variables; call the function that trains, or return it: "
            "{'step': train_step, 'args': (x, y)}",
        ),
        (
            "never_called",
            ": the builder built no graph; build ops in the default graph or in a tf.Graph() of "
            "its own, or call the function that trains",
        ),
        (
            "raises",
            ": the builder raised AttributeError: 'SymbolicTensor' object has no attribute "
            "'no_such_name'; look at train.py:91",
        ),
        (
            "replicas",
            " took gradients outside of any tf.function, 2 times: such a training step has no "
            "graph that could be checked; decorate the function that calls strategy.run with "
            "@tf.function, or return it: {'step': train_step, 'args': (x, y)}",
        ),
        (
            "towers_in_threads",
            " calls shared_step separately on /device:GPU:0 and /device:GPU:1, so no step has all "
            "towers; call it once, and loop over the GPUs inside of the tf.function",
        ),
    ],
)
def test_invalid_functions_are_errors(function: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(resolve(f"train.py:{function}"), 2)

    assert str(caught.value) == f"train.py:{function}{message}"


@pytest.mark.usefixtures("folder")
def test_a_builder_with_a_bug_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_started(*_: Any) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr("placement_checks.capture.programs.capture_workers", not_started)

    with pytest.raises(InputError, match="raised NameError: name 'undefined' is not defined"):
        load(resolve("train.py:bug"), 2)


@pytest.mark.usefixtures("folder")
def test_a_builder_that_fails_both_in_a_graph_and_eagerly() -> None:
    with pytest.raises(InputError, match=r"the builder raised TypeError: float\(\) arg") as caught:
        load(resolve("train.py:for_graphs"), 2)

    assert "note: run eagerly, it raised RuntimeError: tf.placeholder()" in caught.value.details


def test_a_function_that_other_processes_cannot_load(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    try:
        import train  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("train", None)

    functions = [lambda: train.main(), functools.partial(train.main, 2), train.Trainer().train]
    for function in functions:
        with pytest.raises(InputError) as caught:
            load(Program.from_function(function), 2)
        assert str(caught.value).endswith(
            "eager code runs in a process of its own, which cannot import this function: it is "
            "not at the top level of a file; put the code into a 'with watch(eager=True):' block, "
            "or name the function by a target: 'train.py:main(depth=50)'"
        )


def test_in_a_project_with_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=TRAIN)
    pytester.makepyfile(
        """
        import train
        from placement_checks import place, verify

        def here():
            train.towers(2)

        def test_of_another_module():
            assert verify(place(train.main, gpus=2)).count("kept") > 5

        def test_of_this_module():
            assert verify(place(here, gpus=2)).count("kept") > 5
        """
    )

    result = run_pytest_forked(pytester, "-p", "no:cacheprovider", "--import-mode=importlib")

    result.assert_outcomes(passed=2)


def test_status_and_output(folder: Path) -> None:
    """Log records of the abandoned graph are dropped."""

    def ran(target: str) -> subprocess.CompletedProcess[str]:
        return run_forked(["-m", "placement_checks", "verify", target])

    assert "WARNING:tensorflow" not in ran("train.py:main").stderr
    failed = ran("train.py:evaluates")
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert "Traceback" not in failed.stderr
