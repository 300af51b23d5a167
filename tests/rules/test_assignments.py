"""Lines that build no op: assignments whose value a line uses, and calls that give an argument."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from placement_checks.core.frames import Frame
from placement_checks.rules.assignments import (
    assigned_at,
    awaited_at,
    calls,
    fed_at,
    given_at,
    mentioned_at,
    other_branch_of,
    passed_at,
)


def frames(path: Path, source: str) -> Sequence[Frame]:
    """The lines with ``# at FUNCTION``, the outermost call first, in a file with this source."""
    file = path / "program.py"
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    marks = [
        (mark, number)
        for number, line in enumerate(textwrap.dedent(source).splitlines(), 1)
        for mark in [line.partition("# at ")[2]]
        if mark
    ]
    return [Frame(str(file), number, mark) for mark, number in marks]


def expected(source: str) -> int:
    lines = textwrap.dedent(source).splitlines()
    return next(number for number, line in enumerate(lines, 1) if "# <-" in line)


ASSIGNMENTS = {
    "a slice": """
        def build():
            used = grads[1:]  # <-
            mean = average(used)  # at build
    """,
    "a list of weights": """
        def build(n):
            losses, grads = towers(n)
            weights = [1.0, *[0.0] * (n - 1)]  # <-
            train_op = weighted(grads, weights)  # at build
    """,
    "the last value in a loop": """
        def build(n):
            for i in range(n):
                loss = loss_of(i)
                summed = loss  # <-
            return tf.exp(summed)  # at build
    """,
    "a list to which the last value is added": """
        def build(n):
            losses, chosen = [], []
            for i in range(n):
                grads = optimizer.compute_gradients(losses[i])
            chosen.append(grads)  # <-
            return average(chosen)  # at build
    """,
    "a slice next to other values": """
        def build(n):
            begins = [i * rows for i in range(n)]
            others = begins[1:] + begins[:1]  # <-
            parts = cut(begins, others)  # at build
    """,
    "in the module": """
        used = grads[1:]  # <-
        mean = average(used)  # at <module>
    """,
    "the line slices": """
        def build():
            used = grads
            mean = average(used[1:])  # <-  # at build
    """,
    "the line lists": """
        def build():
            used = grads
            mean = average([used, used])  # <-  # at build
    """,
    "the value is computed": """
        def build():
            used = optimizer.compute_gradients(loss)
            mean = average(used)  # <-  # at build
    """,
    "two assignments": """
        def build():
            used = grads
            other = weights
            mean = average(used, other)  # <-  # at build
    """,
    "a list to which each tower adds": """
        def build(n):
            chosen = []
            for i in range(n):
                grads = optimizer.compute_gradients(losses[i])
                chosen.append(grads)
            return average(chosen)  # <-  # at build
    """,
    "the start of a sum": """
        def build():
            total = None
            for each in grads:
                total = add(total, each)  # <-  # at build
    """,
    "a parameter": """
        def build(used):
            mean = average(used)  # <-  # at build
    """,
    "an assignment in another function": """
        def build():
            def other():
                used = grads[1:]
            mean = average(used)  # <-  # at build
    """,
    "an assignment after it": """
        def build():
            mean = average(used)  # <-  # at build
            used = grads[1:]
    """,
}


@pytest.mark.parametrize("source", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_the_assignment_of_the_used_value(source: str, tmp_path: Path) -> None:
    (frame,) = frames(tmp_path, source)

    assert assigned_at(frame) == frame._replace(line=expected(source))


ARGUMENTS = {
    "a literal": """
        def build():
            x = drop(x, seed=7)  # <-  # at build
    """,
    "a variable": """
        def build():
            seed = 7  # <-
            for i in range(2):
                x = drop(x, seed=seed)  # at build
    """,
    "a parameter": """
        def build():
            x = drop(x, 7)  # <-  # at build
        def drop(x, seed):
            return dropout(x, seed=seed)  # at drop
    """,
    "a parameter with another name": """
        def build():
            x = drop(x, 7)  # <-  # at build
        def drop(x, number):
            return dropout(x, seed=number)  # at drop
    """,
    "a parameter of two functions": """
        def build():
            x = network(x, 7)  # <-  # at build
        def network(x, seed):
            return drop(x, seed)  # at network
        def drop(x, seed):
            return dropout(x, seed=seed)  # at drop
    """,
    "a default": """
        def build():
            x = drop(x)  # at build
        def drop(x, seed=7):  # <-
            return dropout(x, seed=seed)  # at drop
    """,
    "a default that the caller replaces": """
        def build():
            x = drop(x, seed=8)  # <-  # at build
        def drop(x, seed=7):
            return dropout(x, seed=seed)  # at drop
    """,
    "a default of a method": """
        def build():
            x = self.drop(x)  # at build
        class Net:
            def drop(self, x, *, seed=7):  # <-
                return dropout(x, seed=seed)  # at drop
    """,
    "an attribute": """
        def build():
            x = drop(x)  # at build
        def drop(x):
            return dropout(x, seed=FLAGS.seed)  # <-  # at drop
    """,
}


@pytest.mark.parametrize("source", ARGUMENTS.values(), ids=ARGUMENTS)
def test_the_line_that_gives_an_argument_its_value(source: str, tmp_path: Path) -> None:
    stack = frames(tmp_path, source)

    assert given_at(stack, "seed")[-1].line == expected(source)


PASSED = {
    "a value that differs": """
        def build():
            model = begin(hidden=1 + own_task())  # <-  # at build
        def begin(hidden):
            return Model(hidden)  # at begin
    """,
    "through two functions": """
        def build():
            model = begin(own_task())  # <-  # at build
        def begin(number):
            return create(hidden=number)  # at begin
        def create(hidden):
            return Model(hidden)  # at create
    """,
    "a literal, which is the same for all": """
        def build():
            model = begin(2)  # at build
        def begin(hidden):
            return Model(hidden)  # <-  # at begin
    """,
    "a value of the function itself": """
        def build():
            model = begin(2 * size)  # at build
        def begin(hidden):
            return Model(hidden + own_task())  # <-  # at begin
    """,
    "a parameter that the function assigns": """
        def build():
            model = begin(2 * size)  # at build
        def begin(hidden):
            hidden = own_task()
            return Model(hidden)  # <-  # at begin
    """,
    "no argument": """
        def build():
            model = begin(2 * size)  # at build
        def begin(hidden):
            return Model()  # <-  # at begin
    """,
}


@pytest.mark.parametrize("source", PASSED.values(), ids=PASSED)
def test_the_call_that_decides_the_arguments(source: str, tmp_path: Path) -> None:
    stack = frames(tmp_path, source)

    assert passed_at(stack)[-1].line == expected(source)


FED = {
    "an assignment": """
        def train():
            data = batches()  # <-
            for x, y in data:
                step(x, y)  # at train
    """,
    "an argument": """
        def build():
            run(step, all_rows)  # <-  # at build
        def run(step, data):
            for number, (x, y) in enumerate(data):
                step(x, y, number == 0)  # at run
    """,
    "an assignment in the caller": """
        def build():
            rows = batches()  # <-
            run(step, data=rows)  # at build
        def run(step, data=None):
            for x, y in default() if data is None else data:
                step(x, y)  # at run
    """,
    "an iterator": """
        def build():
            rows = batches()  # <-
            step(iter(strategy.experimental_distribute_dataset(rows)))  # at build
        def step(iterator):
            return inner(next(iterator))  # at step
    """,
    "the loop": """
        def train(size):
            for x, y in batches(size):  # <-
                step(x, y)  # at train
    """,
    "a dataset that the call makes": """
        def build(size):
            step(iter(batches(size)))  # <-  # at build
        def step(iterator):
            return inner(next(iterator))  # at step
    """,
    "a default": """
        def build():
            run(step)  # at build
        def run(step, data=rows):
            for x, y in data:  # <-
                step(x, y)  # at run
    """,
    "no loop": """
        def train(x, y):
            step(x, y)  # <-  # at train
    """,
}


@pytest.mark.parametrize("source", FED.values(), ids=FED)
def test_the_line_that_makes_the_data_of_a_loop(source: str, tmp_path: Path) -> None:
    stack = frames(tmp_path, source)

    assert fed_at(stack)[-1].line == expected(source)


WAITS = {
    "a list that is assigned before": """
        def build():
            updates = tf.get_collection("updates")  # <-
            with tf.control_dependencies(updates):
                loss = tf.identity(loss)  # at build
    """,
    "a list in the statement": """
        def build():
            with tf.name_scope("tower"), tf.control_dependencies([update]):  # <-
                loss = tf.identity(loss)  # at build
    """,
    "around the call of a function": """
        def build():
            with tf.control_dependencies(updates()):  # <-
                loss = loss_of(x)  # at build
        def loss_of(x):
            with tf.name_scope("loss"):
                return tf.reduce_mean(x)  # at loss_of
    """,
    "the innermost": """
        def build():
            with tf.control_dependencies(first()):
                with tf.control_dependencies(second()):  # <-
                    loss = tf.identity(loss)  # at build
    """,
    "none": """
        def build():
            with tf.control_dependencies(updates()):
                x = tf.identity(x)
            loss = tf.identity(x)  # <-  # at build
    """,
}


@pytest.mark.parametrize("source", WAITS.values(), ids=WAITS)
def test_the_line_that_chooses_the_awaited_ops(source: str, tmp_path: Path) -> None:
    stack = frames(tmp_path, source)

    assert awaited_at(stack)[-1].line == expected(source)


BRANCHES = {
    "else": """
        def average(pairs):
            if is_sparse(pairs):
                mean = pairs[0]  # <-
            else:
                mean = tf.add_n(pairs)  # at average
    """,
    "if": """
        def average(pairs):
            if is_dense(pairs):
                mean = tf.add_n(pairs)  # at average
            else:
                mean = pairs[0]  # <-
    """,
    "an if with one branch": """
        def average(pairs):
            mean = pairs[0]
            if is_dense(pairs):  # <-
                mean = tf.add_n(pairs)  # at average
    """,
    "the next turn of a loop": """
        def average(tower_grads):
            for pairs in zip(*tower_grads):
                if is_sparse(pairs):
                    means.append(pairs[0])  # <-
                    continue
                means.append(tf.add_n(pairs))  # at average
    """,
    "the end of the function": """
        def average(pairs):
            if is_sparse(pairs):
                return pairs[0]  # <-
            return tf.add_n(pairs)  # at average
    """,
    "a variable without gradient": """
        def average(tower_grads):
            for pairs in zip(*tower_grads):
                if pairs[0] is None:
                    continue
                means.append(tf.add_n(pairs))  # <-  # at average
    """,
    "an if before the line": """
        def average(pairs):
            if is_sparse(pairs):
                log(pairs)
            mean = tf.add_n(pairs)  # <-  # at average
    """,
}


@pytest.mark.parametrize("source", BRANCHES.values(), ids=BRANCHES)
def test_the_other_branch(source: str, tmp_path: Path) -> None:
    (frame,) = frames(tmp_path, source)

    assert other_branch_of(frame).line == expected(source)


MENTIONS = {
    "an attribute": """
        def build():
            config.gpu_options.limit = "0"  # <-
            x = placeholder()  # at build
    """,
    "a keyword": """
        def build():
            x = placeholder()  # at build
            return Options(limit="0")  # <-
    """,
    "a key, in a function in it": """
        def build():
            def config():
                return {"limit": 0}  # <-
            x = placeholder()  # at build
    """,
    "the outer function": """
        def config():
            return Options(limit=1)
        def train(options):
            x = placeholder()  # at train
        def main():
            train(Options(limit=0))  # <-  # at main
    """,
}


@pytest.mark.parametrize("source", MENTIONS.values(), ids=MENTIONS)
def test_the_line_that_mentions_a_name(source: str, tmp_path: Path) -> None:
    found = mentioned_at(frames(tmp_path, source)[::-1], "limit")

    assert [each.line for each in found] == [expected(source)]


@pytest.mark.parametrize("more", ["pass", "print(config.limit)\n    del config.limit"])
def test_no_line_is_named_if_none_or_several_mention_a_name(more: str, tmp_path: Path) -> None:
    (frame,) = frames(tmp_path, f"def build():\n    x = 1  # at build\n    {more}")

    assert mentioned_at([frame], "limit") == ()


def test_a_call_of_a_function(tmp_path: Path) -> None:
    source = "def build():\n    w = tf1.get_variable('w', initializer=start)  # at build"
    (frame,) = frames(tmp_path, source)

    assert calls(frame, "get_variable")
    assert not calls(frame, "Variable")


@pytest.mark.parametrize("source", [None, "def build(:", "def other():\n    pass\n"])
def test_without_source_the_line_stays(source: str | None, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    if source is not None:
        file.write_text(source, encoding="utf-8")
    frame = Frame(str(file), 1, "build")

    assert assigned_at(frame) == frame
    assert given_at([frame], "seed") == [frame]
    assert passed_at([frame, frame]) == [frame, frame]
    assert other_branch_of(frame) == frame
    assert awaited_at([frame]) == [frame]
    assert fed_at([frame]) == [frame]
    assert given_at([], "seed") == []
    assert mentioned_at([frame], "seed") == ()
    assert not calls(frame, "build")
