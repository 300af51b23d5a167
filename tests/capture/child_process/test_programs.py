"""Whole programs, each in its own process until its first training step."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.builders import script
from support.forked import start_forked

from placement_checks.capture.programs import load, load_for_one_gpu
from placement_checks.core.errors import InputError
from placement_checks.core.missing import FixedGpus
from placement_checks.core.program import CapturedProgram
from placement_checks.targets.forms import resolve

# Its model is in a neighboring file, to test imports.
MODEL = """
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def towers(num_gpus, rate=0.1):
    losses, gradients, placeholders = [], [], []
    optimizer = tf1.train.AdamOptimizer(rate)
    for number in range(num_gpus):
        with tf.device(f"/gpu:{number}"), tf.name_scope(f"tower_{number}"):
            with tf1.variable_scope("model", reuse=number > 0):
                x = tf1.placeholder(tf.float32, [None, 3], name="x")
                with tf.device("/cpu:0"):
                    w = tf1.get_variable("w", [3, 1])
                loss = tf.reduce_mean(tf.square(tf.tanh(x @ w) - 1.0))
            placeholders.append(x)
            losses.append(loss)
            gradients.append(optimizer.compute_gradients(loss))
    with tf.device("/cpu:0"):
        loss = tf.add_n(losses) / num_gpus
        means = [
            (tf.add_n([gradient for gradient, _ in same]) / num_gpus, same[0][1])
            for same in zip(*gradients)
        ]
        return optimizer.apply_gradients(means), loss, placeholders


def train(num_gpus):
    with tf.Graph().as_default():
        train_op, loss, placeholders = towers(num_gpus)
        with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
            session.run(tf1.global_variables_initializer())
            rows = np.arange(12, dtype=np.float32).reshape(4, 3)
            for _ in range(10):
                session.run([train_op, loss], {x: rows for x in placeholders})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def watched(folder: Path, program: str, *args: str, limit: float = 100) -> CapturedProgram:
    (folder / "train.py").write_text(textwrap.dedent(program))
    return load(script("train.py", args, limit=limit), 2)


IMPORTS_SETTINGS = """
    from model import train
    import settings
    train(settings.NUM_GPUS)
"""


def test_a_let_value_in_another_file(folder: Path) -> None:
    (folder / "settings.py").write_text("NUM_GPUS = 3\n")
    (folder / "train.py").write_text(textwrap.dedent(IMPORTS_SETTINGS))

    built = load(script("train.py", let={"NUM_GPUS": "{gpus}"}), 2)

    assert len(built.fed) == 2
    assert isinstance(single := load_for_one_gpu(built), CapturedProgram)
    assert len(single.fed) == 1


def test_a_let_name_without_assignment_is_an_error(folder: Path) -> None:
    (folder / "settings.py").write_text("import json\nNUM_GPUS = json.load(open('x.json'))['n']\n")
    (folder / "x.json").write_text('{\n "n": 2\n}')
    (folder / "train.py").write_text(textwrap.dedent(IMPORTS_SETTINGS))

    with pytest.raises(InputError, match=r"assigns to n; x\.json:2 sets it, but values"):
        load(script("train.py", let={"n": "{gpus}"}), 2)


def refused(folder: Path, program: str, *args: str, limit: float = 100) -> str:
    with pytest.raises(InputError) as caught:
        watched(folder, program, *args, limit=limit)
    return str(caught.value)


@pytest.mark.smoke
def test_a_captured_program_is_like_one_of_this_process(folder: Path) -> None:
    """A recorded program has the properties of a live graph, without frames of the caller."""
    program = """
        import sys
        from model import train

        if __name__ == "__main__":
            assert sys.argv[0] == "train.py"
            train(int(sys.argv[1]))
    """
    other = watched(folder, program, "{gpus}")
    here = load(resolve("model.py:train(num_gpus={gpus})"), 2)

    assert other.requested.ops == here.requested.ops
    assert other.requested.variables == here.requested.variables
    assert other.requested.collections == here.requested.collections
    assert other.requested.step == here.requested.step
    assert other.requested.soft
    assert other.initial == here.initial
    assert other.applied == here.applied
    assert other.graph_def == here.graph_def
    assert other.fed.keys() == here.fed.keys()
    np.testing.assert_array_equal(other.fed["tower_0/model/x:0"], np.arange(12).reshape(4, 3))
    of_other, of_here = other.requested.details, here.requested.details
    for op in here.requested.ops:
        assert of_other.outputs(op) == tuple(of_here.outputs(op))
        assert of_other.forward_op(op) == of_here.forward_op(op)
        assert of_other.frames(op)[1:] == tuple(of_here.frames(op))
        assert str(of_other.frames(op)[0]) == "train.py:7"

    single = load_for_one_gpu(other)
    assert isinstance(single, CapturedProgram)
    assert {op.requested.index for op in single.requested.ops.values()} == {None, 0}


def test_deleted_files_are_restored_after_a_kill(folder: Path) -> None:
    program = """
        import os
        import shutil

        import tensorflow as tf
        from model import train

        tf.io.gfile.rmtree("checkpoints")
        os.mkdir("checkpoints")
        open("checkpoints/new", "w").close()
        open("train.log", "w").close()
        if os.path.exists("kill"):
            os.abort()
        train(2)
    """
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "model").write_text("a week of training")
    (folder / "train.log").write_text("a week of training")

    notes = watched(folder, program).notes
    assert notes[-1] == (
        "the program changes or deletes checkpoints and train.log; the originals are restored"
    )
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["model"]
    assert (folder / "train.log").read_text() == "a week of training"

    (folder / "kill").touch()
    assert refused(folder, program) == (
        "train.py: its process was ended by SIGABRT, before its first training step; run the "
        "program with python to see why"
    )
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["model"]
    assert (folder / "train.log").read_text() == "a week of training"


def test_a_killed_program_with_child_processes(folder: Path) -> None:
    """A forked process keeps the pipe for the answer open."""
    program = """
        import os
        import signal
        import time

        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert refused(folder, program) == (
        "train.py: its process was ended by SIGKILL, possibly because memory ran out, "
        "before its first training step; run the program with python to see why"
    )


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_files_are_restored_if_the_command_is_killed(
    folder: Path, ending: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    (folder / "train.log").write_text("a week of training")
    (folder / "train.py").write_text(
        "import time\nopen('train.log', 'w').close()\nopen('there', 'w').close()\n"
        "time.sleep(600)\n"
    )
    command = start_forked(["-m", "placement_checks", "verify", "train.py"])
    wait_for(lambda: (folder / "there").exists())

    os.kill(command.pid, ending)

    assert command.wait() == (143 if ending == signal.SIGTERM else -ending)
    wait_for(lambda: (folder / "train.log").read_text() != "")
    assert (folder / "train.log").read_text() == "a week of training"
    wait_for(lambda: not any((folder / "temporary").iterdir()))


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_program_that_trains_in_a_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        import os
        import threading

        import tensorflow as tf
        from model import train

        gpus = tf.config.list_physical_devices("GPU")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(str(i) for i in range(len(gpus)))
        thread = threading.Thread(target=train, args=[len(gpus)])
        thread.start()
        thread.join()
        raise AssertionError("the process ends at the step")
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    built = watched(folder, program)

    assert built.notes[0] == "run until its first training step, at model.py:37"
    assert load_for_one_gpu(built)


def test_a_program_without_a_gpu_option_is_built_for_one_number(folder: Path) -> None:
    program = "from model import train\ntrain(2)\n"

    assert load_for_one_gpu(watched(folder, program)) == FixedGpus(
        "the program does not receive the number of GPUs",
        option="write {gpus} in its arguments, or --let NAME={gpus}",
    )
    with pytest.raises(InputError) as caught:
        load_for_one_gpu(watched(folder, program, "{gpus}"))
    assert str(caught.value) == (
        "train.py {gpus} builds the same graph for 1 GPU as for 2, so {gpus} has no effect; "
        "write {gpus} where the program reads the number, such as --let NUM_GPUS={gpus} for a "
        "number in its source code"
    )


def test_a_program_that_trains_in_its_own_child_process(folder: Path) -> None:
    program = """
        import multiprocessing
        from model import train

        process = multiprocessing.get_context("fork").Process(target=train, args=[2])
        process.start()
        process.join()
    """
    assert refused(folder, program) == (
        "train.py trains in a child process, which is not captured; name the function that the "
        "child process "
        "calls: train.py:train"
    )


SPAWNED = """
    import multiprocessing
    import sys

    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=sys.exit, args=[STATUS])
        process.start()
        WAIT
"""
ADVICE = "name the function that the processes of multiprocessing call: train.py:FUNCTION"


@pytest.mark.parametrize(
    ("wait", "status", "limit", "message"),
    [
        (
            "queue.get()",
            "3",
            100,
            "waits at train.py:10 for processes that multiprocessing started, but they have "
            "ended, one with exit status 3",
        ),
        (
            "queue.get()",
            "0",
            5,
            "did not reach a training step within 5 s, and is at train.py:10",
        ),
        (
            "process.join()",
            "3",
            100,
            "took no training step itself, but started processes with multiprocessing, which are "
            "not captured",
        ),
    ],
    ids=["waits", "waits too long", "ends"],
)
def test_a_program_that_trains_in_new_interpreters(
    folder: Path, wait: str, status: str, limit: float, message: str
) -> None:
    program = SPAWNED.replace("STATUS", status).replace("WAIT", wait)

    assert refused(folder, program, limit=limit) == f"train.py {message}; {ADVICE}"


def test_a_failed_process_does_not_end_a_program_that_goes_on(folder: Path) -> None:
    """It trains itself, after the time in which a wait for the process would be noticed."""
    program = SPAWNED.replace("STATUS", "3").replace(
        "WAIT", "process.join(); import time, model; time.sleep(4); model.train(2)"
    )

    assert len(watched(folder, program).fed) == 2


def test_a_program_that_starts_another_program(folder: Path) -> None:
    (folder / "other.py").write_text("")
    program = """
        import subprocess
        import sys

        subprocess.run([sys.executable, "other.py", "--steps=3"], check=True)
    """
    assert refused(folder, program) == (
        "train.py opened no session, but started another program, which is not captured: "
        "python other.py --steps=3; check that program instead: placement-checks verify FILE -- "
        "ARGS"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("KeyboardInterrupt", "it raised KeyboardInterrupt"),
        ("GeneratorExit", "it raised GeneratorExit"),
        ("BaseException('why')", "it raised BaseException: why"),
        ("type('Bad', (Exception,), {'__str__': lambda _: 1 / 0})()", "it raised Bad"),
    ],
)
def test_any_exception_of_the_program_names_its_line(folder: Path, error: str, words: str) -> None:
    assert refused(folder, f"\nraise {error}\n") == (
        f"train.py: before its first training step {words}; look at train.py:2"
    )


def test_a_timeout_names_the_current_line(folder: Path) -> None:
    program = "import time\n\ntime.sleep(600)\n"

    assert refused(folder, program, limit=0.5) == (
        "train.py did not reach a training step within 0.5 s, and is at train.py:3; raise "
        "the limit, --limit 1, or do less before the first training step"
    )


def test_a_daemon_ends_with_the_program(folder: Path) -> None:
    program = """
        import os
        import time
        from pathlib import Path

        if os.fork():
            while not os.path.exists("daemon"):
                time.sleep(0.01)
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        Path("daemon").write_text(str(os.getpid()))
        time.sleep(600)
    """

    assert refused(folder, program) == (
        "train.py: its process ended with status 0, before its first training step; run the "
        "program with python to see why"
    )
    assert not psutil.pid_exists(int((folder / "daemon").read_text()))


def test_standard_input_is_empty(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert refused(folder, 'input("Overwrite? ")\n') == (
        "train.py: before its first training step it raised EOFError: EOF when reading a line; "
        "look at train.py:1"
    )
    assert "Overwrite? " in capfd.readouterr().err


def test_deprecation_warnings_are_hidden_and_other_warnings_shown(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = """
    import tensorflow as tf
    from model import train

    tf.compat.v1.disable_v2_behavior()
    tf.get_logger().warning("of the program's own")
    train(2)
    """

    watched(folder, program)

    output = capfd.readouterr().err
    assert "of the program's own" in output
    assert "deprecated" not in output


def test_a_program_that_only_evaluates(folder: Path) -> None:
    program = """
        import sys

        import tensorflow as tf
        from model import towers, tf1

        tf1.disable_eager_execution()
        train_op, loss, placeholders = towers(1)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        session.run(loss, {placeholders[0]: [[1.0, 2.0, 3.0]]})
        sys.exit()
    """
    assert refused(folder, program) == (
        "train.py ended without a training step: it opened 1 session with 2 runs, but ran no op "
        "of an optimizer, such as Adam/update_model/w/ResourceApplyAdam; pass the arguments "
        "for training after --, or name the function that builds its graph, train.py:build"
    )


def test_a_program_that_fails_between_its_steps(folder: Path) -> None:
    """As a GAN that evaluates its samples after it has trained only one of its networks."""
    program = """
        import tensorflow as tf
        from model import tf1

        tf1.disable_eager_execution()
        variables = [tf1.get_variable(name, []) for name in "ab"]
        steps = [tf1.train.GradientDescentOptimizer(0.1).minimize(v, var_list=[v])
                 for v in variables]
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        session.run(steps[0])
        assert session.run([steps[0], variables[0]])[1] > 0, "diverged"
    """

    captured = watched(folder, program)

    assert "then it raised AssertionError: diverged, maybe because" in captured.notes[2]


def test_a_function_with_arguments_of_the_command_line(folder: Path) -> None:
    program = """
        from absl import flags
        from model import train

        flags.DEFINE_integer("num_gpus", 1, "How many.")

        def main():
            train(flags.FLAGS.num_gpus)
    """
    (folder / "train.py").write_text(textwrap.dedent(program))

    built = load(script("train.py:main", ("--num_gpus={gpus}",)), 2)

    assert {op.requested.index for op in built.requested.ops.values()} == {None, 0, 1}
