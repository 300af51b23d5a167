"""The functions that count as training steps, and the results that replace theirs."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.eager_programs import rows, types, updates, watched, weights

from placement_checks.capture.in_process.builder import BuildRecorder, record_eager_code
from placement_checks.core.errors import InputError
from placement_checks.core.program import Program
from placement_checks.tf.patches import Patch
from placement_checks.tf.simulated_devices import configure_logical_cpus


def seen(program: Any) -> BuildRecorder:
    """The calls of a program that ends when no other step is expected."""

    class End(BaseException):
        pass

    def end(_: BuildRecorder) -> None:
        raise End

    configure_logical_cpus(3)
    with record_eager_code(Program("program", lambda: None), 2, end) as building:
        try:
            program()
        except End:
            return building
    return building


def steps(building: BuildRecorder) -> list[str]:
    return [step.graph.name for step in building.calls.steps]


def step_on(w: Any, name: str = "step") -> Any:
    def step(x: Any) -> Any:
        return updates(w, x)

    step.__name__ = name
    return tf.function(step)


def test_patches_of_one_attribute_are_applied_in_the_order_of_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied: list[Patch] = []
    find_owner = Patch.find_owner

    def note(patch: Patch) -> Any:
        applied.append(patch)
        return find_owner(patch)

    monkeypatch.setattr(Patch, "find_owner", note)

    seen(lambda: None)

    order = list(Patch)
    for path in ("tensorflow.Graph.device", "tensorflow.GradientTape.gradient"):
        patches = [patch for patch in applied if patch.path == path]
        assert patches == [patch for patch in order if patch.path == path]
    assert len({patch.path for patch in applied}) < len(applied) == len({*applied})


def test_a_training_step_is_not_executed() -> None:
    after: list[Any] = []

    def program() -> None:
        w = weights()
        step = step_on(w)
        after.append((step(rows()).numpy(), w.numpy().sum()))
        step(rows())

    building = seen(program)

    assert steps(building) == ["step"]
    assert after == [(0.0, 3.0)]  # substitute results; the weights are unchanged
    assert building.calls.steps[0].called_at.startswith("tests/capture/eager/test_calls.py:")


def test_other_functions_run_and_are_named() -> None:
    def program() -> None:
        w = weights()
        double = tf.function(lambda x: x * 2.0)
        assert double(tf.constant(2.0)).numpy() == 4.0

        @tf.function
        def gradient_of(x: Any) -> Any:  # and changes nothing
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w * x)
            return tape.gradient(loss, w)

        @tf.function
        def reset() -> None:  # and takes no gradient
            w.assign_add(w)

        gradient_of(1.0)
        reset()
        assert w.numpy().sum() == 6.0

    building = seen(program)

    assert steps(building) == []
    assert list(building.calls.others)[1:] == ["gradient_of", "reset"]


def test_all_alternating_steps_are_recorded() -> None:
    def program() -> None:
        first, second = step_on(weights(), "train_d"), step_on(weights(), "train_g")
        for _ in range(9):
            first(rows())
            second(rows())

    building = seen(program)

    assert steps(building) == ["train_d", "train_g"]
    assert building.capture_step().step_count == 2


def test_a_shorter_last_batch_is_another_trace() -> None:
    def program() -> None:
        step = step_on(weights())
        for number in (8, 8, 5):
            step(rows(number))

    def at_once() -> None:
        step = step_on(weights())
        for number in (8, 5, 5):
            step(rows(number))

    def shape(step: Any) -> Any:
        return step.inputs[0].shape[0]

    assert list(map(shape, seen(program).calls.steps)) == [8]
    assert list(map(shape, seen(at_once).calls.steps)) == [8, 5]


def test_steps_that_never_repeat_end() -> None:
    called: list[int] = []

    def program() -> None:
        for number in range(1, 100):
            called.append(number)
            step_on(weights())(rows(number))

    seen(program)

    assert 10 < len(called) < 30


def test_substitute_results_of_any_structure() -> None:
    results: list[Any] = []

    def program() -> None:
        w = weights()

        @tf.function
        def step(x: Any, size: Any) -> Any:
            of_any_rank = tf.raw_ops.PlaceholderWithDefault(input=x, shape=None)
            return {
                "loss": updates(w, x),
                "others": (tf.constant("text"), of_any_rank, tf.zeros([size, 2], tf.int64)),
                "plain": 7,
                "none": None,
                "right": tf.constant([True]),
            }

        for _ in range(2):
            results.append(step(rows(), tf.constant(4)))

    seen(program)

    (made,) = results
    text, of_any_rank, zeros = made["others"]
    assert made["loss"].numpy() == 0.0
    assert (text.numpy(), of_any_rank.shape.rank) == (b"", 0)
    assert (zeros.shape, zeros.dtype) == ([1, 2], tf.int64)
    assert made["none"] is None
    assert made["right"].numpy().tolist() == [False]


def test_a_step_without_substitute_results_is_the_last() -> None:
    def program() -> None:
        w = weights()

        @tf.function
        def step(x: Any) -> Any:
            updates(w, x)
            return tf.experimental.Optional.from_value(x)

        step(rows())
        pytest.fail("was not ended")

    assert steps(seen(program)) == ["step"]


def test_a_function_that_creates_variables_is_one_step() -> None:
    """Its first call checks whether the variables exist."""

    def program() -> None:
        made: list[Any] = []

        @tf.function
        def step(x: Any) -> Any:
            if not made:
                made.append(tf.Variable(tf.reduce_sum(x) * tf.ones([3, 1]), name="lazy"))
            return updates(made[0], x)

        for _ in range(3):
            step(rows())

    building = seen(program)

    assert len(building.calls.steps) == 1


def test_inner_calls_are_part_of_a_function() -> None:
    def program() -> None:
        w = weights()
        inner = step_on(w, "inner")

        @tf.function
        def outer(x: Any) -> Any:
            return inner(x) + inner(x)

        outer(rows())

    assert steps(seen(program)) == ["outer"]
    assert "AssignSubVariableOp" in types(watched(program))


def test_a_step_in_a_graph_is_refused() -> None:
    def program() -> None:
        step = step_on(weights())
        with tf.Graph().as_default():
            step(tf.zeros([2, 3]))

    with pytest.raises(InputError) as caught:
        watched(program)

    assert str(caught.value) == (
        "program calls the tf.function that trains inside a tf.Graph, where the whole step is "
        "one op; "
        "call it eagerly, outside of the graph"
    )


def test_pipelines_are_not_autotuned_except_in_graphs() -> None:
    """An iterator that a program leaves behind would wait for its autotuning thread."""
    dataset = tf.data.Dataset.range(3)
    tuned: list[bool | None] = []
    in_function: list[str] = []

    def program() -> None:
        tuned.append(iter(dataset)._dataset.options().autotune.enabled)
        total = tf.function(lambda: dataset.reduce(tf.constant(0, tf.int64), tf.add))
        graph = total.get_concrete_function().graph
        in_function.extend(op.type for op in graph.get_operations())

    seen(program)

    assert tuned == [False]
    assert "OptionsDataset" not in in_function
