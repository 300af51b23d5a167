"""Both programs on simulated devices, from equal variables, on equal rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from support import pairs

from placement_checks import Program
from placement_checks.capture.programs import load
from placement_checks.core.errors import CannotRun
from placement_checks.core.measurement import Measurement, Trajectory
from placement_checks.core.missing import Missing
from placement_checks.numerics.comparing import Limits, compare_gradients, differing_variables
from placement_checks.numerics.diagnosis import diagnose
from placement_checks.numerics.training_divergence import compare_variables, compensated_factor
from placement_checks.run.compare import steps
from placement_checks.run.compare.measure import differs, measure
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.sessions import Conditions, PairedSessions, Perturbation
from placement_checks.run.feeding.batches import Case

tf1 = tf.compat.v1
GradientDescentOptimizer: Any = tf1.train.GradientDescentOptimizer


def run(
    towers: Callable[..., Any],
    single: Callable[..., Any] = pairs.single,
    batch: Any = pairs.batch,
    gpus: int = 2,
    **conditions: Any,
) -> Measurement:
    """Measure two builders."""
    return pairs.measured(towers, single, batch, gpus, **conditions)


def trajectory_of(measured: Measurement) -> Trajectory:
    assert measured.trajectory
    return measured.trajectory


def found_in(measured: Measurement) -> list[dict[str, list[float]]]:
    """The values of the program after each step."""
    return [
        {name: step.found.tolist() for name, step in variables.items()}
        for variables in trajectory_of(measured).steps
    ]


def sound(measured: Measurement) -> bool:
    return (
        not any(differing_variables(trial, measured.precisions) for trial in measured.trials)
        and not compare_variables(measured, trajectory_of(measured))[1]
        and not measured.missing
        and not measured.saved
    )


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_sound_towers_have_the_gradients_and_weights_of_one_gpu(gpus: int) -> None:
    measured = run(pairs.towers, gpus=gpus)

    assert sound(measured)
    assert measured.devices == "simulated"
    assert measured.trials[0].found.keys() == {"w", "b"}
    assert [len(rows) for rows in measured.trials[0].split] == (
        [] if gpus == 1 else [measured.trials[0].rows // gpus] * gpus
    )
    steps = [step["w"] for step in trajectory_of(measured).steps]
    assert len(steps) == 3
    for before, after in pairwise(steps):
        assert np.array_equal(after.moved[0], after.expected - before.expected)
        assert np.array_equal(after.moved[1], after.found - before.found)
        assert not np.array_equal(after.found, before.found)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        lambda: tf1.train.AdamOptimizer(0.01),
        lambda: tf1.train.AdagradOptimizer(0.1),
        lambda: tf1.train.AdadeltaOptimizer(0.1),
        lambda: tf1.train.RMSPropOptimizer(0.01, momentum=0.9, centered=True),
        lambda: tf1.train.FtrlOptimizer(0.1),
        lambda: tf1.train.ProximalGradientDescentOptimizer(0.1),
    ],
)
def test_the_gradient_is_an_input_of_every_apply_op(optimizer: Callable[[], Any]) -> None:
    towers = partial(pairs.towers, optimizer=optimizer)

    measured = run(towers, partial(towers, 1))

    assert sound(measured)
    assert measured.trials[0].found.keys() == {"w", "b"}
    assert not measured.unreadable


def keras_towers(num_gpus: int, made: Callable[[], Any], factor: float = 1.0) -> dict[str, Any]:
    """Towers with an optimizer of Keras; the mean of their gradients is multiplied."""
    scope = partial(tf1.variable_scope, tf1.get_variable_scope())
    optimizer = made()
    inputs, gradients = [], []
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"), scope(reuse=i > 0):
            x, y = (
                tf1.placeholder(tf.float32, [None, 4]),
                tf1.placeholder(tf.float32, [None, 1]),
            )
            loss = pairs.squared_error(x, y)
            variables = tf1.trainable_variables()
            gradients.append(tf.gradients(loss, variables))
        inputs.append({"x": x, "y": y})
    mean = [factor / num_gpus * tf.add_n(each) for each in zip(*gradients, strict=True)]
    graph = tf1.get_default_graph()
    before = graph.version
    optimizer.apply_gradients(zip(mean, variables, strict=True))  # Keras 3 returns no op
    ops = graph.get_operations()[before:]
    train_op = [op for op in ops if op.type.startswith("Assign") and op.type != "AssignVariableOp"]
    return {"train_op": train_op, "inputs": inputs if num_gpus > 1 else inputs[0]}


def test_gradients_are_read_from_arguments_of_keras_optimizers() -> None:
    towers = partial(keras_towers, made=lambda: tf.keras.optimizers.SGD(0.1))

    measured = run(towers, lambda: towers(1))

    assert sound(measured)
    assert measured.trials[0].found.keys() == {"w", "b"}
    assert measured.optimizers == {"SGD"}


def test_slots_of_keras_have_the_declared_factor() -> None:
    towers = partial(keras_towers, made=lambda: tf.keras.optimizers.Adam(0.01, name="adam"))

    measured = run(partial(towers, factor=2.0), lambda: towers(1), scale=2.0)

    owners = trajectory_of(measured).owners
    slots = {slot: owner for slot, owner in owners.items() if slot != owner}
    assert sorted(slots.values()) == ["b", "b", "w", "w"]
    assert slots.keys() <= trajectory_of(measured).steps[0].keys()
    assert not differs(measured, Conditions(scale=2.0))


def test_declared_gradients_replace_unreadable_ones() -> None:
    def towers(num_gpus: int = 2, *, say: bool = True) -> dict[str, Any]:
        step = pairs.towers(num_gpus, optimizer=Noted)
        halves = [(0.05 * gradient, variable) for gradient, variable in Noted.mean] * 2
        descent = [variable.assign_sub(half) for half, variable in halves]
        declared = {"gradients": Noted.mean} if say else {}
        return {**step, "train_op": tf.group(*descent), **declared}

    class Noted(GradientDescentOptimizer):
        """Applies nothing."""

        mean: list[Any] = []  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__(0.1)

        def apply_gradients(self, pairs: Any, *_: Any, **__: Any) -> Any:
            Noted.mean = list(pairs)
            return tf.no_op()

    measurement = run(towers, lambda: towers(1))
    silent = run(lambda num_gpus: towers(num_gpus, say=False), lambda: towers(1, say=False))

    assert sound(measurement)
    assert measurement.trials[0].found.keys() == {"w", "b"}
    assert not silent.trials[0].found
    assert silent.unreadable["w"].startswith("2 ops of one step apply gradients")
    assert "return {'gradients': [(gradient, variable), …]}" in silent.unreadable["w"]
    assert not compare_variables(silent, trajectory_of(silent))[1]


@pytest.mark.parametrize("shape", [[6, 4], [None, 4], None], ids=str)
def test_slices_are_made_dense(
    shape: list[int | None] | None,
) -> None:
    """The shape of one variable is known only when it has a value."""
    values = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)

    def loss(x: Any, y: Any) -> Any:
        with tf.device("/cpu:0"):
            first = tf1.placeholder_with_default(values, shape)
            table = tf1.get_variable("table", initializer=first, validate_shape=False)
        words = tf.cast(tf.abs(x) * 2, tf.int32) % 6
        rows = tf.nn.embedding_lookup(table, words)
        return tf.reduce_mean((tf.reduce_sum(rows, [1, 2])[:, None] - y) ** 2)

    def sparse(num_gpus: int = 2) -> dict[str, Any]:
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        inputs, gradients = [], []
        for i in range(num_gpus):
            with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
                x, y = (
                    tf1.placeholder(tf.float32, [None, 4]),
                    tf1.placeholder(tf.float32, [None, 1]),
                )
                ((slices, table),) = optimizer.compute_gradients(loss(x, y))
                gradients.append(slices)
            inputs.append({"x": x, "y": y})
        values = tf.concat([gradient.values / num_gpus for gradient in gradients], 0)
        indices = tf.concat([gradient.indices for gradient in gradients], 0)
        mean = tf.IndexedSlices(values, indices, gradients[0].dense_shape)
        train_op = optimizer.apply_gradients([(mean, table)])
        return {"train_op": train_op, "inputs": inputs if num_gpus > 1 else inputs[0]}

    measured = run(sparse, lambda: sparse(1))

    assert sound(measured)
    assert measured.trials[0].found["table"].shape == (6, 4)
    assert "Sparse" in next(iter(measured.optimizers))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_precision_is_compared_in_its_own_eps(dtype: str) -> None:
    def batch(rng: np.random.Generator, n: int) -> dict[str, Any]:
        return {
            name: value.astype(tf.dtypes.as_dtype(dtype).as_numpy_dtype)
            for name, value in pairs.batch(rng, n).items()
        }

    towers = partial(pairs.towers, dtype=tf.dtypes.as_dtype(dtype))
    measured = run(towers, partial(towers, 1), batch)

    assert measured.dtypes == {"w": dtype, "b": dtype}
    assert not differing_variables(measured.trials[0], measured.precisions)
    assert measured.trials[0].found["w"].dtype == np.float64


def test_constant_variables_start_with_different_values() -> None:
    first = trajectory_of(run(pairs.towers, gpus=2)).steps[0]

    assert first["b"].start.shape == (1,)  # of one number, nothing can differ
    wide = partial(
        pairs.towers, loss=lambda x, y: tf.reduce_mean((pairs.predicted(x, width=3) - y) ** 2)
    )
    start = trajectory_of(run(wide, partial(wide, 1))).steps[0]["b"].start
    assert len(set(start)) == 3
    assert np.all(start > 0)


@pytest.mark.parametrize(
    ("factor", "asked"), [(1.0, {0}), (1 + 1e-5, {0, 4, 12}), (1.1, {0, 4})], ids=str
)
def test_a_small_difference_is_measured_with_more_perturbations(
    monkeypatch: pytest.MonkeyPatch, factor: float, asked: set[int]
) -> None:
    perturbations = PairedSessions.perturbations
    seen = set()

    def counted(sessions: PairedSessions, rows: int) -> list[Perturbation]:
        found = perturbations(sessions, rows)
        seen.add(len(found))
        return found

    monkeypatch.setattr(PairedSessions, "perturbations", counted)

    def scaled(x: Any, y: Any) -> Any:
        return factor * pairs.squared_error(x, y)

    measured = run(partial(pairs.towers, loss=scaled))

    assert seen == asked
    assert (not sound(measured)) is (factor != 1)


def at_a_kink(x: Any, y: Any, factor: float = 1.0) -> Any:
    """Rounding decides whether this loss counts the first row of `first_row_at_the_kink`."""
    initial = tf1.constant_initializer([[1.0], [2.0], [3.0], [4.0]])
    w = tf1.get_variable("w", [4, 1], initializer=initial)
    return tf.reduce_mean(tf.nn.relu(factor * tf.matmul(x, w) - y))


def first_row_at_the_kink(_rng: np.random.Generator, n: int) -> dict[str, Any]:
    labels = -np.arange(n, dtype=np.float32)
    labels[0] = 10  # the sum of the weights
    return {"x": np.ones((n, 4), np.float32), "y": labels[:, np.newaxis]}


def test_a_value_that_crosses_a_kink_is_noise() -> None:
    """Convolutions of one and of two images differ by rounding, in any order of the images."""
    rounded = partial(pairs.towers, loss=partial(at_a_kink, factor=1 + 2.0**-22))

    measured = run(rounded, partial(pairs.towers, 1, loss=at_a_kink), first_row_at_the_kink)

    (gradient,) = compare_gradients(measured.trials[0], measured.precisions)
    assert gradient.state == "noise"
    assert gradient.ratio == pytest.approx(16 / 15)
    assert sound(measured)


def test_another_factor_is_no_noise_at_a_kink() -> None:
    twice = partial(pairs.towers, loss=partial(at_a_kink, factor=2))

    measured = run(twice, partial(pairs.towers, 1, loss=at_a_kink), first_row_at_the_kink)

    (gradient,) = compare_gradients(measured.trials[0], measured.precisions)
    assert gradient.state == "differs"


class Loaded:
    """A session of a reference that remembers the last values of its variables."""

    def __init__(self, *trained: str) -> None:
        self.program = Mock()
        self.program.gradients.by_variable = dict.fromkeys(trained)
        self.values: dict[str, Any] = {}

    def initialize(self, values: dict[str, Any]) -> None:
        self.values = dict(values)

    def load(self, values: dict[str, Any]) -> None:
        self.values |= values


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_perturbations_change_weights_by_up_to_four_eps(dtype: str) -> None:
    kind = tf.dtypes.as_dtype(dtype).as_numpy_dtype
    weights = np.linspace(-3, 3, 1001).astype(kind)  # one of them is zero
    reference = Loaded("w", "count")
    sessions = PairedSessions(Mock(), cast("Any", reference), ONE_GPU, Conditions())
    sessions.restart(4)

    changes = []
    for perturbation in sessions.perturbations(8):
        sessions.perturb({"w": weights, "rate": weights, "count": np.ones(3, int)}, perturbation)
        assert reference.values.keys() <= {"w"}
        change = reference.values.get("w", weights).astype(float) - weights.astype(float)
        changes.append(change[weights != 0] / weights[weights != 0].astype(float))
        assert reference.values.get("w", weights).dtype == kind

    eps = {"float32": 2.0**-23, "float64": 2.0**-52}.get(dtype, 0.0)
    units = np.round(np.array(changes) / eps, 1) if eps else np.array(changes)
    assert np.max(np.abs(units)) <= (5 if eps else 0)
    if eps:
        assert np.median(np.abs(units)) > 1
        assert np.max(np.abs(units[0::2] + units[1::2])) <= 1.5  # opposite, but for rounding
        assert not np.array_equal(units[0], units[2])


def test_noise_is_measured_although_the_learning_rate_compensates_for_a_factor() -> None:
    twice = partial(
        pairs.towers,
        loss=lambda x, y: 2 * pairs.squared_error(x, y),
        optimizer=lambda: GradientDescentOptimizer(0.05),
    )

    measured = run(twice, gradient_limits=Limits(tolerance=1e-3))

    assert compensated_factor(measured) == pytest.approx(2)
    assert max(measured.trials[0].noise.values()) > 0


def by_variable_rate(rate: float) -> Callable[[], Any]:
    """An optimizer whose learning rate is a variable, as in Keras."""

    def made() -> Any:
        initial = tf1.constant_initializer(rate)
        variable = tf1.get_variable("rate", [], initializer=initial, trainable=False)
        return GradientDescentOptimizer(variable)

    return made


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize(("rate", "is_sound"), [(0.05, True), (0.1, False), (0.2, False)])
def test_a_variable_learning_rate_compensates_for_a_sum(
    rate: float, is_sound: bool, scale: float
) -> None:
    summed = partial(
        pairs.towers,
        loss=lambda x, y: 2 * pairs.squared_error(x, y),
        optimizer=by_variable_rate(rate),
    )
    single = partial(pairs.towers, 1, optimizer=by_variable_rate(0.1))

    measured = run(summed, single, scale=scale)

    assert (not differs(measured, Conditions(scale=scale))) is is_sound


def test_a_variable_learning_rate_may_grow_with_the_number_of_towers() -> None:
    single = partial(pairs.towers, 1, optimizer=by_variable_rate(0.1))

    assert sound(run(partial(pairs.towers, optimizer=by_variable_rate(0.2)), single))


ONE_GPU = Mock(same_towers=False)


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_other_orders_keep_inputs_with_their_labels(rows: int) -> None:
    sessions = PairedSessions(Mock(), Mock(), ONE_GPU, Conditions())
    sessions.restart(50)

    orders = [perturbation.order for perturbation in sessions.perturbations(rows)]

    assert len(orders) == 50
    assert all(sorted(order) == list(range(rows)) for order in orders)
    assert list(range(rows)) not in orders


def test_one_row_has_no_other_order() -> None:
    sessions = PairedSessions(Mock(), Mock(), ONE_GPU, Conditions())
    sessions.restart(2)

    assert [perturbation.order for perturbation in sessions.perturbations(1)] == [[0], [0]]


def test_rows_stay_in_the_towers_of_an_earlier_revision() -> None:
    split = ((0, 1, 2), (3, 4, 5))
    feeding = Mock(same_towers=True, split=split, rows=6)
    sessions = PairedSessions(Mock(), Mock(), feeding, Conditions())
    sessions.restart(20)

    orders = [perturbation.order for perturbation in sessions.perturbations(6)]

    assert {(*sorted(order[:3]), *sorted(order[3:])) for order in orders} == {tuple(range(6))}
    assert list(range(6)) not in orders


def test_two_revisions_that_take_no_rows() -> None:
    def build(num_gpus: int) -> dict[str, Any]:
        rate = tf1.placeholder(tf.float32, [], name="rate")

        def loss(x: Any, y: Any) -> Any:
            del x, y
            return rate * tf.reduce_mean(pairs.predicted(tf.ones([8, 4])) ** 2)

        return {**pairs.towers(num_gpus, loss=loss), "inputs": {"rate": rate}}

    program, earlier = (load(Program(name, build), 2) for name in ("towers", "earlier"))
    pair = ProgramPair.from_programs(program, earlier, "simulated", same_towers=True)

    measured = measure(pair, lambda _rng, _n: {"rate": np.float32(0.5)}, Conditions())

    assert measured.trials[0].found.keys() == {"w", "b"}
    assert sound(measured)


def test_two_runs_give_the_same_numbers() -> None:
    first, second = run(pairs.towers), run(pairs.towers)

    assert found_in(first) == found_in(second)


def test_a_different_case_is_saved_and_can_be_repeated() -> None:
    summed = partial(pairs.towers, loss=lambda x, y: 2 * pairs.squared_error(x, y))

    first = run(summed)
    again = run(summed, batch=Case.load(Path(first.saved)))

    assert differing_variables(first.trials[0], first.precisions) == {"w", "b"}
    assert first.saved_bytes == Path(first.saved).stat().st_size
    for name, value in first.trials[0].found.items():
        assert np.array_equal(value, again.trials[0].found[name])
    assert found_in(first) == found_in(again)


def test_an_unsaved_case_keeps_the_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    measured = run(partial(pairs.towers, loss=lambda x, y: 2 * pairs.squared_error(x, y)))

    assert differing_variables(measured.trials[0], measured.precisions) == {"w", "b"}
    assert not measured.saved
    (note,) = measured.notes
    assert note.startswith("the case cannot be saved: [Errno 20] Not a directory: ")


def test_variables_of_one_program_alone_are_not_compared() -> None:
    def single() -> dict[str, Any]:
        with tf.device("/cpu:0"):
            tf1.get_variable("theirs", [], initializer=tf1.zeros_initializer(), trainable=False)
        return pairs.single()

    def towers(num_gpus: int = 2) -> dict[str, Any]:
        with tf.device("/cpu:0"):
            tf1.get_variable("ours", [], initializer=tf1.zeros_initializer(), trainable=False)
        return pairs.towers(num_gpus)

    measured = run(towers, single)

    assert sound(measured)
    assert [*trajectory_of(measured).steps[0]] == ["w", "b"]


def test_rows_are_generated_without_a_batch_function() -> None:
    def loss(x: Any, y: Any) -> Any:
        labels = tf1.placeholder(tf.int32, [None])
        given.append(labels)
        logits = pairs.predicted(x, width=3)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * y[:, 0]
        )

    def towers(num_gpus: int = 2) -> dict[str, Any]:
        given.clear()
        step = pairs.towers(num_gpus, loss=loss)
        inputs = step["inputs"] if num_gpus > 1 else [step["inputs"]]
        labelled = [{**mapping, "labels": y} for mapping, y in zip(inputs, given, strict=True)]
        return {**step, "inputs": labelled if num_gpus > 1 else labelled[0]}

    given: list[Any] = []
    assert sound(run(towers, lambda: towers(1), None))


def test_sizes_of_uneven_parts_come_from_placeholders_or_declarations() -> None:
    def towers(num_gpus: int = 2, sizes: tuple[Any, ...] = (12, 4)) -> dict[str, Any]:
        with tf1.device(lambda op: "/cpu:0" if op.type == "VarHandleOp" else op.device):
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            inputs, gradients = [], []
            for i, size in enumerate(sizes):
                with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
                    x, y = (
                        tf1.placeholder(tf.float32, [size, 4]),
                        tf1.placeholder(tf.float32, [size, 1]),
                    )
                    gradients.append(optimizer.compute_gradients(pairs.squared_error(x, y)))
                inputs.append({"x": x, "y": y})
            mean = [
                (0.75 * first + 0.25 * second, variable)
                for (first, variable), (second, _) in zip(*gradients, strict=True)
            ]
            return {"train_op": optimizer.apply_gradients(mean), "inputs": inputs}

    assert sound(run(towers))
    any_size = partial(towers, sizes=(None, None))
    assert sound(run(any_size, shares=(3, 1)))
    assert differing_variables(run(any_size).trials[0], {"w": "float32", "b": "float32"}) == {
        "w",
        "b",
    }


def test_a_program_that_splits_the_batch_also_gets_an_odd_batch() -> None:
    def towers(num_gpus: int = 2, *, split: bool = False) -> dict[str, Any]:
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        with tf.device("/cpu:0"):
            x, y = tf1.placeholder(tf.float32, [None, 4]), tf1.placeholder(tf.float32, [None, 1])
            n = tf.shape(x)[0]
            cuts = [i * n // num_gpus for i in range(num_gpus + 1)]
            if split:
                parts = list(zip(tf.split(x, num_gpus), tf.split(y, num_gpus), strict=True))
            else:
                parts = [(x[a:b], y[a:b]) for a, b in pairwise(cuts)]
        gradients = []
        for i, part in enumerate(parts):
            with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
                weight = tf.cast(tf.shape(part[0])[0] / n, tf.float32)
                gradients.append(optimizer.compute_gradients(weight * pairs.squared_error(*part)))
        total = [
            (tf.add_n([g for g, _ in pairs_of]), pairs_of[0][1])
            for pairs_of in zip(*gradients, strict=True)
        ]
        return {"train_op": optimizer.apply_gradients(total), "inputs": {"x": x, "y": y}}

    weighted = run(towers)
    evenly = run(partial(towers, split=True))

    assert sound(weighted)
    assert [trial.rows for trial in weighted.trials] == [16, 17]
    assert [trial.rows for trial in evenly.trials] == [16]
    assert list(evenly.notes) == ["not tested with an uneven batch: towers fails on 17 rows"]
    assert [trial.rows for trial in run(towers, rows=8).trials] == [8]


def test_local_variables_follow_the_common_initial_values() -> None:
    def loss(x: Any, y: Any) -> Any:
        error = pairs.squared_error(x, y)
        with tf1.variable_scope("", reuse=True), tf.device("/cpu:0"):
            w = tf1.get_variable("w", [4, 1])
            copy = tf1.Variable(
                w.read_value(), trainable=False, collections=[tf1.GraphKeys.LOCAL_VARIABLES]
            )
        return error + tf.reduce_sum(copy * w)

    copying = partial(pairs.towers, loss=loss)
    once = run(copying, partial(copying, 1))

    assert not differing_variables(once.trials[0], once.precisions)


def test_a_run_on_one_device_is_no_evidence() -> None:
    with pytest.raises(CannotRun) as refused:
        run(partial(pairs.towers, device=lambda _: "/gpu:0"))

    assert str(refused.value) == (
        "inconclusive run: towers has inputs for 2 towers, and all of them ran on /device:GPU:0"
    )


def test_hidden_copies_show_after_the_first_step() -> None:
    def towers(num_gpus: int = 2) -> dict[str, Any]:
        def loss(x: Any, y: Any) -> Any:
            with tf.device("/cpu:0"), tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
                w = tf1.get_variable("w", [4, 1], initializer=tf1.random_normal_initializer())
                copy = tf1.Variable(
                    w.read_value(), trainable=False, collections=[tf1.GraphKeys.LOCAL_VARIABLES]
                )
            return tf.reduce_mean((tf.matmul(x, w + copy - tf.stop_gradient(w)) - y) ** 2)

        return pairs.towers(num_gpus, loss=loss)

    def single() -> dict[str, Any]:
        def loss(x: Any, y: Any) -> Any:
            w = tf1.get_variable("w", [4, 1], initializer=tf1.random_normal_initializer())
            return tf.reduce_mean((tf.matmul(x, w) - y) ** 2)

        return pairs.towers(1, loss=loss)

    measured = run(towers, single)

    assert not differing_variables(measured.trials[0], measured.precisions)
    (departure,) = compare_variables(measured, trajectory_of(measured))[1]
    assert (departure.difference.variable, departure.step) == ("w", 2)


@pytest.mark.parametrize(
    ("of", "within", "coarsest"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("float32", "float16", "float16"),
        ("float64", "float32", "float32"),
        ("float32", "float64", "float32"),
    ],
)
def test_a_gradient_has_the_precision_of_its_computation(
    of: str, within: str, coarsest: str
) -> None:
    def loss(x: Any, y: Any) -> Any:
        w = tf1.get_variable("w", [4, 1], of, tf1.random_normal_initializer())
        predicted = tf.matmul(tf.cast(x, within), tf.cast(w, within))
        return tf.reduce_mean((tf.cast(predicted, of) - tf.cast(y, of)) ** 2)

    towers = partial(pairs.towers, loss=loss)
    measured = run(towers, partial(towers, 1))

    assert measured.precisions == {"w": coarsest}
    assert sound(measured)


def test_local_variables_are_not_compared() -> None:
    def loss(x: Any, y: Any) -> Any:
        error = pairs.squared_error(x, y)
        with tf.device("/cpu:0"):
            _, update = tf1.metrics.mean(tf.stop_gradient(error), name="metric")
            with tf.control_dependencies([update]):
                return tf.identity(error)

    towers = partial(pairs.towers, loss=loss)
    measured = run(towers, partial(towers, 1))

    assert sound(measured)
    assert trajectory_of(measured).steps[0].keys() == {"w", "b"}


@pytest.mark.parametrize("rows", [None, 8])
def test_with_declared_statistics_the_reference_takes_each_towers_rows(rows: int | None) -> None:
    """A reference for a fixed number of rows takes the rows of a tower several times."""

    def loss(x: Any, y: Any) -> Any:
        mean, variance = tf.nn.moments(x, [0])
        return pairs.squared_error((x - mean) * tf.math.rsqrt(variance + 1e-3), y)

    towers = partial(pairs.towers, loss=loss, rows=rows)
    single = partial(towers, 1, rows=rows and 2 * rows)
    whole, apart = (
        run(towers, single, statistics_per_tower=per_tower) for per_tower in (False, True)
    )

    assert differing_variables(whole.trials[0], whole.precisions) == {"w"}
    assert diagnose(whole, whole.trials[0], ["w"])["w"].mistake == "statistics"
    assert not differing_variables(apart.trials[0], apart.precisions)
    assert sound(apart)
    assert apart.own_rows == 'as gradients-equal.statistics = "tower" declares'


class ClippingAverages(GradientDescentOptimizer):
    """Clips the averaged gradients by their global norm."""

    def apply_gradients(self, averaged: Any, *args: Any, **kwargs: Any) -> Any:
        gradients, variables = zip(*averaged, strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
        return super().apply_gradients(list(zip(clipped, variables, strict=True)), *args, **kwargs)


class ClippingInTowers(GradientDescentOptimizer):
    """Clips the gradients of each tower by their global norm."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        gradients, variables = zip(*super().compute_gradients(*args, **kwargs), strict=True)
        return list(zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables, strict=True))


@pytest.mark.parametrize("optimizer", [ClippingAverages, ClippingInTowers])
@pytest.mark.parametrize("factor", [1.0, 0.01])
def test_statistics_per_tower_and_clipping(optimizer: Any, factor: float) -> None:
    """The reference averages where the program averages: before or after clipping.

    Only gradients with a small norm show another factor.
    """

    def loss(x: Any, y: Any, factor: float = 1.0) -> Any:
        mean, variance = tf.nn.moments(x, [0])
        return factor * pairs.squared_error((x - mean) * tf.math.rsqrt(variance + 1e-3), y)

    towers = partial(pairs.towers, loss=loss, optimizer=partial(optimizer, 0.1))
    small = partial(towers, loss=partial(loss, factor=factor))

    same = run(towers, partial(towers, 1), statistics_per_tower=True)
    changed = run(small, partial(towers, 1), statistics_per_tower=True)

    assert not differing_variables(same.trials[0], same.precisions)
    assert sound(same)
    assert differing_variables(changed.trials[0], changed.precisions) == (
        set() if factor == 1 else {"w", "b"}
    )


def test_values_that_become_infinite_are_not_compared() -> None:
    towers = partial(
        pairs.towers,
        loss=lambda x, y: 1e20 * pairs.squared_error(x, y),
        optimizer=lambda: tf1.train.AdamOptimizer(0.1),
    )

    measured = run(towers, partial(towers, 1))

    assert not differing_variables(measured.trials[0], measured.precisions)
    assert measured.trajectory == Missing("after 3 steps of the reference w is NaN or infinite")


def test_complex_values_are_not_compared() -> None:
    values = {"w": np.ones(2, np.float32), "spectrum": np.ones(2, np.complex64)}

    assert steps._diverged(cast(Any, None), [values]) == Missing(
        "spectrum is complex64, and complex values are not compared"
    )


def test_strings_of_a_case_are_saved() -> None:
    def towers(num_gpus: int = 2) -> dict[str, Any]:
        def loss(x: Any, y: Any) -> Any:
            with tf.device("/cpu:0"):
                words.append(tf1.placeholder(tf.string, [None]))
                sizes = tf.cast(tf.strings.length(words[-1]), tf.float32)
            return num_gpus * pairs.squared_error(x * sizes[:, None], y)

        words: list[Any] = []
        step = pairs.towers(num_gpus, loss=loss)
        inputs = step["inputs"] if num_gpus > 1 else [step["inputs"]]
        named = [{**mapping, "words": word} for mapping, word in zip(inputs, words, strict=True)]
        return {**step, "inputs": named if num_gpus > 1 else named[0]}

    def batch(rng: np.random.Generator, n: int) -> dict[str, Any]:
        texts = np.array(["a" * int(size) for size in rng.integers(1, 5, n)], object)
        return {**pairs.batch(rng, n), "words": texts}

    first = run(towers, partial(towers, 1), batch)
    again = run(towers, partial(towers, 1), Case.load(Path(first.saved)))

    assert differing_variables(first.trials[0], first.precisions) == {"w", "b"}
    for name, value in first.trials[0].found.items():
        assert np.array_equal(value, again.trials[0].found[name])


def test_a_step_with_weight_noise_is_compared_by_gradients() -> None:
    def towers(num_gpus: int = 2) -> dict[str, Any]:
        step = pairs.towers(num_gpus)
        with tf.control_dependencies([step["train_op"]]), tf.device("/cpu:0"):
            w, _ = tf1.trainable_variables()
            noise = tf.random.normal([4, 1], stddev=0.01, name="langevin")
            return {**step, "train_op": w.assign_add(noise).op}

    measured = run(towers, partial(towers, 1))

    assert not differing_variables(measured.trials[0], measured.precisions)
    assert measured.trajectory == Missing(
        "a step of towers depends on the random op 'langevin/RandomStandardNormal'"
    )


def test_an_unused_tower_does_not_run() -> None:
    """It does not run at all, and its absence shows in the gradients."""

    def towers(num_gpus: int = 2) -> dict[str, Any]:
        with tf1.device(lambda op: "/cpu:0" if op.type == "VarHandleOp" else op.device):
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            inputs, gradients = [], []
            for i in range(num_gpus):
                with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
                    x = tf1.placeholder(tf.float32, [None, 4])
                    y = tf1.placeholder(tf.float32, [None, 1])
                    gradients.append(optimizer.compute_gradients(pairs.squared_error(x, y)))
                inputs.append({"x": x, "y": y})
            return {"train_op": optimizer.apply_gradients(gradients[-1]), "inputs": inputs}

    measured = run(towers)

    (first, last), trial = measured.trials[0].per_tower, measured.trials[0]
    assert differing_variables(trial, measured.precisions) == {"w", "b"}
    for name, gradient in trial.found.items():
        assert np.allclose(gradient, last.gradients[name], rtol=1e-5)
        assert not np.allclose(gradient, first.gradients[name], rtol=1e-5)


def test_real_devices_are_not_simulated_and_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotRun, match="towers needs 2 real GPUs, and this machine has none"):
        run(pairs.towers, devices="real")

    # Enough for the reference alone.
    monkeypatch.setattr("placement_checks.run.runnable.usable_gpus", lambda: 1)
    assert sound(run(pairs.towers))


def test_gpus_that_tensorflow_does_not_find_are_replaced_and_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver has two GPUs, but TensorFlow finds none, as without the libraries of CUDA."""
    monkeypatch.setattr("placement_checks.run.runnable.local_gpus", lambda: 2)

    measured = run(pairs.towers)

    assert sound(measured)
    assert measured.devices == "simulated"
    (note,) = measured.notes
    assert note == (
        "TensorFlow finds only 0 of the 2 GPUs of this machine, so CPU devices replaced the GPUs "
        "(install the libraries of CUDA: pip install 'tensorflow[and-cuda]')"
    )
    with pytest.raises(CannotRun, match="TensorFlow finds only 0 of the 2 GPUs"):
        run(pairs.towers, devices="real")


def test_a_batch_function_without_odd_batches_is_named() -> None:
    def towers(num_gpus: int = 2) -> dict[str, Any]:
        with tf.device("/cpu:0"):
            x, y = tf1.placeholder(tf.float32, [None, 4]), tf1.placeholder(tf.float32, [None, 1])
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        gradients = []
        for i in range(num_gpus):
            with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
                part = pairs.squared_error(x[i::num_gpus], y[i::num_gpus])
                gradients.append(optimizer.compute_gradients(part / num_gpus))
        total = [
            (tf.add_n([g for g, _ in pairs_of]), pairs_of[0][1])
            for pairs_of in zip(*gradients, strict=True)
        ]
        return {"train_op": optimizer.apply_gradients(total), "inputs": {"x": x, "y": y}}

    def even(rng: np.random.Generator, n: int) -> Any:
        if n % 2:
            raise ValueError("an odd number")
        return pairs.batch(rng, n)

    measured = run(towers, batch=even)

    assert [trial.rows for trial in measured.trials] == [16]
    assert list(measured.notes) == [
        "there is no batch of 17 rows: batch(rng, 17) raised ValueError: an odd number"
    ]


WIDE = 900


def wide_loss(x: Any, y: Any) -> Any:
    hidden = tf.tanh(pairs.predicted(x, ("w1", "b1"), WIDE))
    hidden = tf.tanh(pairs.predicted(hidden, ("w2", "b2"), WIDE))
    return tf.reduce_mean((pairs.predicted(hidden) - y) ** 2)


def test_comparing_needs_little_memory() -> None:
    """Memory in bytes per parameter: Adam has three values for each, in every step and order.

    The graph of this model takes some ten bytes per parameter.
    """
    adam = partial(pairs.towers, optimizer=lambda: tf1.train.AdamOptimizer(0.001))
    bent = partial(adam, loss=lambda x, y: 1.5 * wide_loss(x, y))
    pair = pairs.pair(bent, partial(adam, 1, loss=wide_loss))

    tracemalloc.start()
    try:
        measured = measure(pair, pairs.batch, Conditions())
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert differing_variables(measured.trials[0], measured.precisions)
    assert trajectory_of(measured)
    assert held < 16 * WIDE**2
    assert peak < 70 * WIDE**2
