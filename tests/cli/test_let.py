"""``--let`` for functions whose module sets the number of GPUs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks import place
from placement_checks.core.errors import InputError

# A penalty in the first tower alone. Only the comparison with one GPU shows that.
TRAIN = """\
import tensorflow as tf
from settings import RATE

tf1 = tf.compat.v1
GPUS = 2
DEVICES = [f"/gpu:{n}" for n in range(GPUS)]


def tower(number):
    x = tf1.placeholder(tf.float32, [None, 3], name=f"x_{number}")
    with tf1.variable_scope("model", reuse=number > 0), tf.device("/cpu:0"):
        w = tf1.get_variable("w", [3, 1])
    loss = tf.reduce_mean(tf.square(x @ w - 1.0))
    return loss + 0.01 * tf.nn.l2_loss(w) if number == 0 else loss


def build():
    import late

    assert late.NUMBER == GPUS
    optimizer = tf1.train.GradientDescentOptimizer(RATE)
    losses, gradients = [], []
    for number, device in enumerate(DEVICES):
        with tf.device(device), tf.name_scope(f"tower_{number}"):
            losses.append(tower(number))
            gradients.append(optimizer.compute_gradients(losses[-1]))
    with tf.device("/cpu:0"):
        means = [
            (tf.add_n([gradient for gradient, _ in same]) / len(DEVICES), same[0][1])
            for same in zip(*gradients)
        ]
        return {"train_op": optimizer.apply_gradients(means), "loss": losses}
"""
RULES = ("--rule", "equal-to-one-gpu", "--rule", "gradients-averaged")
LET = ("--let", "GPUS={gpus}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "settings.py").write_text("RATE = 0.1\n")
    (tmp_path / "late.py").write_text("from train import GPUS as NUMBER\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_without_it_the_report_ends_with_the_offer(run: Run) -> None:
    ran = run("verify", "train.py:build")

    assert ran.status == 0
    assert ran.out.splitlines()[-1] == (
        "next: 2 rules could not be checked: the builder has no argument num_gpus, but reads "
        "GPUS = 2 (train.py:5); if that is the number of GPUs: --let GPUS={gpus}"
    )


@pytest.mark.smoke
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("target", ["train.py:build", "train:build"])
def test_the_module_is_imported_with_the_new_value(run: Run, target: str) -> None:
    ran = run("verify", target, *LET, *RULES)

    assert ran.status == 1
    assert "the penalty (L2Loss) counts 0.5 times" in ran.out


def test_a_value_in_pyproject(run: Run, folder: Path) -> None:
    program = '{ target = "train.py:build", let = { GPUS = "{gpus}" } }'
    (folder / "pyproject.toml").write_text(f"[tool.placement_checks]\nprograms = [{program}]\n")

    ran = run("verify", *RULES)

    assert ran.status == 1
    assert "train.py:14: the update of model/w differs from one GPU: the penalty" in ran.out


@pytest.mark.usefixtures("folder")
def test_a_function_that_a_test_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "settings"):  # other tests import modules of these names
        monkeypatch.delitem(sys.modules, name, raising=False)
    train = importlib.import_module("train")
    try:
        evidence = place(train.build, let={"GPUS": "{gpus}"})
    finally:
        for name in ("train", "settings"):
            sys.modules.pop(name, None)

    assert train.GPUS == 2
    assert evidence.single_gpu
    assert {str(op.requested) for op in evidence.single_gpu.ops.values()} >= {"/device:GPU:0"}
    assert not any("GPU:1" in str(op.requested) for op in evidence.single_gpu.ops.values())


def test_a_local_function_cannot_be_imported_again() -> None:
    def build() -> None: ...

    with pytest.raises(InputError, match="cannot be imported by another process"):
        place(build, let={"GPUS": "{gpus}"})


@pytest.mark.usefixtures("folder")
def test_a_name_that_no_module_assigns(run: Run) -> None:
    ran = run("verify", "train.py:build", "--let", "NUMBER_OF_GPUS={gpus}")

    assert ran.status == 2
    assert "no Python file of the program assigns to NUMBER_OF_GPUS" in ran.err
    assert "train.py assigns to tf1, GPUS, DEVICES" in ran.err


@pytest.mark.usefixtures("folder")
def test_a_constant_that_is_not_the_number_of_towers(run: Run) -> None:
    ran = run("verify", "train.py:build", "--let", "RATE={gpus}")

    assert ran.status == 2
    assert "pass {gpus} to the argument or constant that sets the number of towers" in ran.err


@pytest.mark.usefixtures("folder")
def test_timings_need_no_reference(run: Run) -> None:
    assert "no reference program" in run("time", "train.py:build").err
    assert "no reference program" not in run("time", "train.py:build", *LET).err
