"""The ranks of a program are captured in processes of their own; errors name the rank."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from placement_checks import place, verify
from placement_checks.core.errors import InputError, UsageError

PROGRAM = """
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def main():
    tf1.disable_eager_execution()
    hvd.init()
    {begin}
    x = tf1.placeholder(tf.float32, [None, 2], name="x")
    with tf.device({device!r}):
        loss = tf.reduce_mean(x @ tf1.get_variable("w", [2, 1]))
    optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        for _ in range(3):
            session.run(train_op, {{x: np.random.rand(4, 2)}})


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def program(begin: str = "pass", device: str = "") -> str:
    return textwrap.dedent(PROGRAM).format(begin=begin, device=device)


@pytest.mark.parametrize("target", ["train.py", "train.py:main"])
def test_a_program_is_placed_as_its_ranks(written: Path, target: str) -> None:
    written.write_text(program(device="/gpu:0"), encoding="utf-8")

    evidence = place(target, horovod=3)

    assert str(evidence.machine) == "rank*3: gpu*1"
    strategy = evidence.placement.strategy
    assert strategy is not None
    assert [record.rank.number for record in strategy.ranks] == [0, 1, 2]
    calls = evidence.placement.step.gradient_calls
    assert [{strategy.replica_of[op] for op in call.ops} for call in calls] == [{0}, {1}, {2}]
    states = {each.rule: each.state for each in verify(evidence).verdicts}
    assert states["replicas-in-sync"] == states["gradients-averaged"] == "kept"
    assert states["no-idle-device"] == "broken"  # no rank selects its GPU


@pytest.mark.parametrize(
    ("begin", "device", "words"),
    [
        (
            "assert hvd.rank() == 0, 'no data'",
            "",
            "as rank 1, before its first training step it raised AssertionError: no data; the "
            "other ranks wait for it",
        ),
        (
            "if hvd.rank() == 1: return",
            "",
            "as rank 1, it ended without a training step",
        ),
        (
            "with tf.device('/gpu:1'): tf.zeros([2])",
            "/gpu:0",
            "as rank 0, it requests /gpu:0 and /gpu:1, but a rank has one GPU",
        ),
    ],
)
def test_an_error_names_the_rank(written: Path, begin: str, device: str, words: str) -> None:
    written.write_text(program(begin, device), encoding="utf-8")

    with pytest.raises(InputError) as caught:
        place("train.py", horovod=2)

    assert words in str(caught.value)


def test_without_ranks_the_option_is_named(written: Path) -> None:
    written.write_text(program(), encoding="utf-8")

    with pytest.raises(InputError, match="pass --horovod 2 to run it as 2 ranks"):
        place("train.py")


@pytest.mark.parametrize(
    ("horovod", "machine", "words"),
    [
        (1, None, "horovod=1 is not a number of ranks from 2 to 256"),
        (True, None, "horovod=True is not a number of ranks"),
        (2, "gpu*2", "machine and horovod are mutually exclusive"),
    ],
)
def test_bad_numbers_of_ranks(horovod: int, machine: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        place("train.py", horovod=horovod, machine=machine)


def test_a_function_within_a_function_cannot_run_as_ranks() -> None:
    def main() -> None: ...

    with pytest.raises(InputError, match="at the top level of a file"):
        place(main, horovod=2)
