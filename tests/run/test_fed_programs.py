"""Captured programs and their references on recorded rows, without declared inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import pairs
from support.verdicts import of_rules
from support.watched import (
    dense,
    function,
    hidden,
    judged,
    mean,
    normalized,
    watched,
    with_dropout,
)

from placement_checks import verify
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.results import Verdict
from placement_checks.run.compare.measure import measure
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.sessions import Conditions
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.replayed import ReplayedFeeding
from placement_checks.run.timing.benchmark import TimedPair

tf1 = tf.compat.v1

Model = Callable[..., Any]


def placeholders(rows: int | None) -> dict[str, Any]:
    return {
        "x": tf1.placeholder(tf.float32, [rows, 4], name="x"),
        "y": tf1.placeholder(tf.float32, [rows, 1], name="y"),
    }


def summed(x: Any, y: Any) -> Any:
    return hidden(x, y) * tf.cast(tf.shape(x)[0], tf.float32)


def towers(
    num_gpus: int = 2,
    *,
    loss: Model = hidden,
    placeholders: Callable[[int | None], dict[str, Any]] = placeholders,
    numbers: Callable[[], dict[str, Any]] = dict,
    rows: int | None = None,
    shared: bool = False,
    cut: Callable[[Any, int, int], Any] = lambda x, i, n: tf.split(x, n)[i],
    average: Callable[[Any], Any] = mean,
    change: Callable[[Any], Any] = list,
    optimizer: Callable[[float], Any] = tf1.train.GradientDescentOptimizer,
) -> dict[str, Any]:
    """Towers in scopes, each with its own placeholders, or all with parts of the same ones."""
    made = optimizer(0.1)
    whole = numbers()
    inputs, tower_grads = [placeholders(rows)] if shared else [], []
    for i in range(num_gpus):
        with (
            tf.device(f"/gpu:{i}"),
            tf1.device(lambda op: "/cpu:0" if op.type == "VarHandleOp" else op.device),
            tf.name_scope(f"tower_{i}" if num_gpus > 1 else "model"),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE),
        ):
            if not shared:
                inputs.append(placeholders(rows))
            parts = {
                name: cut(each, i, num_gpus) if shared else each
                for name, each in inputs[-1].items()
            }
            tower_grads.append(made.compute_gradients(loss(**parts, **whole)))
    with tf.device("/cpu:0"):
        averaged = [
            (average([gradient for gradient, _ in of_one]), of_one[0][1])
            for of_one in zip(*tower_grads, strict=True)
        ]
        train_op = made.apply_gradients(change(averaged))
    listed = [{**each, **whole} for each in inputs]
    return {"train_op": train_op, "inputs": listed[0] if shared else listed}


Build = Callable[..., dict[str, Any]]


def several(**kwargs: Any) -> Build:
    """A builder of towers."""

    def build(num_gpus: int = 2) -> dict[str, Any]:
        return towers(num_gpus, **kwargs)

    return build


def alone(**kwargs: Any) -> Build:
    """A builder of their reference."""

    def single() -> dict[str, Any]:
        return towers(1, shared=True, **kwargs)

    return single


SEVERAL, ALONE = several(), alone()


def verdicts(
    program: Build | None = None,
    reference: Build | None = None,
    *,
    rows: tuple[int, int] = (16, 16),
    gpus: int = 2,
    batch: Any = pairs.batch,
    **conditions: Any,
) -> tuple[Verdict, Verdict]:
    """Returns the verdicts on the gradients and on the weights."""
    evidence = judged(
        watched(program or SEVERAL, batch, rows[0], gpus),
        watched(reference or ALONE, batch, rows[1], 1),
        **conditions,
    )
    report = verify(evidence, only=["gradients-equal", "weights-equal"])
    gradients, weights = of_rules(report, "gradients-equal", "weights-equal")
    return gradients, weights


def states(*args: Any, **kwargs: Any) -> tuple[str, str]:
    gradients, weights = verdicts(*args, **kwargs)
    return gradients.state, weights.state


def messages(*args: Any, **kwargs: Any) -> str:
    """What is found about the gradients."""
    (gradients, _) = verdicts(*args, **kwargs)
    assert gradients.state == "broken"
    return "; ".join(finding.message for finding in gradients.findings)


@pytest.mark.parametrize(("gpus", "shared"), [(1, False), (2, False), (2, True), (3, True)])
def test_sound_towers_have_the_gradients_and_weights_of_one_gpu(gpus: int, shared: bool) -> None:
    rows = 4 * gpus

    assert states(several(shared=shared), rows=(rows, rows), gpus=gpus) == (
        "kept",
        "kept",
    )


SUM = several(average=tf.add_n)
LAST = several(average=lambda of_towers: of_towers[-1])


@pytest.mark.parametrize(
    ("build", "text", "rows"),
    [
        (build, text, rows)
        for build, text, all_rows in (
            (SUM, "2 towers are added up instead of averaged", [(16, 16), (16, 2)]),
            (LAST, "only the rows of tower 1, the last, count", [(16, 8), (16, 32)]),
        )
        for rows in all_rows
    ],
)
def test_mistakes_are_found_with_any_feeds_of_the_reference(
    build: Callable[..., Any], text: str, rows: tuple[int, int]
) -> None:
    assert text in messages(build, rows=rows)


@pytest.mark.parametrize(
    ("loss", "rows", "shared"),
    [
        (hidden, (16, 16), False),
        (hidden, (16, 8), True),
        (with_dropout, (16, 8), False),
        (with_dropout, (16, 32), True),
        (normalized, (16, 32), False),
        (normalized, (16, 16), True),
        (normalized, (16, 8), False),
    ],
)
def test_the_reference_is_compared_on_the_rows_that_it_takes(
    loss: Model, rows: tuple[int, int], shared: bool
) -> None:
    """Also if the reference takes only the number of rows that it was built for."""
    of_tower = rows[0] if shared else rows[0] // 2
    program = several(loss=loss, rows=of_tower, shared=shared)
    for number in (None, rows[1]):
        gradients, weights = verdicts(
            program,
            alone(loss=loss, rows=number),
            rows=rows,
        )

        assert (gradients.state, weights.state) == ("kept", "kept")


def test_random_ops_draw_the_same_for_the_same_rows() -> None:
    reference = alone(loss=with_dropout)

    assert states(several(loss=with_dropout), reference) == ("kept", "kept")
    assert "only the rows of tower 1" in messages(
        several(loss=with_dropout, average=lambda of_towers: of_towers[-1]),
        reference,
        rows=(16, 8),
    )


def scaled_at_random(x: Any, y: Any) -> Any:
    """One number for all rows of a tower, as in a network that leaves out layers at random."""
    return tf.random.uniform([], 0.5, 1.5) * hidden(x, y)


def test_towers_may_draw_different_numbers() -> None:
    assert states(several(loss=scaled_at_random), alone(loss=scaled_at_random)) == ("kept", "kept")
    assert "added up" in messages(
        several(loss=scaled_at_random, average=tf.add_n), alone(loss=scaled_at_random)
    )


def cannot(*args: Any, **kwargs: Any) -> str:
    """Returns the reason why the programs are not compared."""
    with pytest.raises(CannotRun) as refused:
        verdicts(*args, **kwargs)
    return str(refused.value)


def flagged(x: Any, y: Any, training: Any, weight: Any) -> Any:
    loss = tf.cond(training, lambda: hidden(x, y), lambda: 0 * hidden(x, y))
    return loss * weight


def numbers() -> dict[str, Any]:
    return {
        "training": tf1.placeholder(tf.bool, [], name="training"),
        "weight": tf1.placeholder(tf.float32, [], name="weight"),
    }


def with_numbers(weight: Callable[[int], float]) -> Any:
    def batch(rng: Any, n: int) -> dict[str, Any]:
        return {**pairs.batch(rng, n), "training": True, "weight": weight(n)}

    return batch


def test_flags_and_weights_are_fed_whole_to_every_tower() -> None:
    fed = {"loss": flagged, "numbers": numbers}
    batch = with_numbers(lambda _: 0.5)

    for rows in ((16, 16), (16, 8)):
        assert states(several(**fed), alone(**fed), rows=rows, batch=batch) == ("kept", "kept")
    added_up = several(**fed, average=tf.add_n)
    assert "added up" in messages(added_up, alone(**fed), batch=batch)


def test_fed_loss_weights_for_the_number_of_gpus() -> None:
    fed = {"loss": flagged, "numbers": numbers}
    batch = with_numbers(lambda n: 8 / n)

    added_up = several(**fed, average=tf.add_n)
    assert states(added_up, alone(**fed), rows=(16, 8), batch=batch) == ("kept", "kept")
    assert "but the two programs are also fed different numbers for 'weight:0'" in cannot(
        several(**fed), alone(**fed), rows=(16, 8), batch=batch
    )


def test_a_rate_may_grow_with_the_number_of_gpus() -> None:
    def build(num_gpus: int) -> dict[str, Any]:
        rate = tf1.placeholder(tf.float32, [], name="rate")
        step = towers(num_gpus, optimizer=lambda _: tf1.train.GradientDescentOptimizer(rate))
        return {**step, "inputs": [{**each, "rate": rate} for each in step["inputs"]]}

    def single() -> dict[str, Any]:
        return build(1)

    def batch(rng: Any, n: int) -> dict[str, Any]:
        return {**pairs.batch(rng, n), "rate": n / 160}

    def program(num_gpus: int = 2) -> dict[str, Any]:
        return build(num_gpus)

    assert states(program, single, rows=(16, 8), batch=batch) == ("kept", "kept")


def tokens(rows: int | None) -> dict[str, Any]:
    return {
        "words": tf1.placeholder(tf.int32, [rows, 3], name="words"),
        "label": tf1.placeholder(tf.int64, [rows], name="label"),
    }


def of_words(words: Any, label: Any) -> Any:
    table = tf1.get_variable("table", [5, 8])
    logits = dense(tf.reduce_mean(tf.nn.embedding_lookup(table, words), 1), "two", 3)
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
    )


def sentences(rng: Any, n: int) -> dict[str, Any]:
    return {"words": rng.integers(5, size=[n, 3]), "label": rng.integers(3, size=n)}


@pytest.mark.parametrize("shared", [False, True])
def test_integers_stay_valid_word_ids(shared: bool) -> None:
    program = several(loss=of_words, placeholders=tokens, shared=shared)
    reference = alone(loss=of_words, placeholders=tokens)

    assert states(program, reference, batch=sentences) == ("kept", "kept")


def two_of_a_shape(rows: int | None) -> dict[str, Any]:
    return {name: tf1.placeholder(tf.float32, [rows, 4]) for name in ("one", "other", "third")}


def test_placeholders_of_equal_shape_are_matched_by_order() -> None:
    def loss(one: Any, other: Any, third: Any) -> Any:
        return hidden(one * other, tf.reduce_sum(third, 1, keepdims=True))

    def batch(rng: Any, n: int) -> dict[str, Any]:
        return {name: rng.normal(size=[n, 4]) for name in ("one", "other", "third")}

    program = several(loss=loss, placeholders=two_of_a_shape)
    reference = alone(loss=loss, placeholders=two_of_a_shape)

    assert states(program, reference, batch=batch) == ("kept", "kept")


@pytest.mark.parametrize("rows", [(17, 17), (17, 5)])
def test_towers_of_unequal_size(rows: tuple[int, int]) -> None:
    def weighted(of_towers: Any) -> Any:
        return (9 * of_towers[0] + 8 * of_towers[1]) / 17

    assert states(several(average=weighted), rows=rows) == ("kept", "kept")
    assert "the losses of the towers do not count equally" in messages(rows=rows)
    reason = cannot(several(loss=normalized, average=weighted), alone(loss=normalized), rows=rows)
    assert reason.startswith(
        "the towers get different numbers of rows (9 and 8), and single cannot "
    )


def clipped(pairs_: Any) -> Any:
    gradients, variables = zip(*pairs_, strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
    return list(zip(clipped, variables, strict=True))


def test_gradients_clipped_after_averaging() -> None:
    program, reference = several(change=clipped), alone(change=clipped)

    for rows in ((16, 16), (16, 8), (16, 32)):
        assert states(program, reference, rows=rows) == ("kept", "kept")


def clipped_mean(of_towers: Any) -> Any:
    """The mean of gradients that each tower clips."""
    return tf.add_n([tf.clip_by_norm(each, 0.1) for each in of_towers]) / len(of_towers)


@pytest.mark.parametrize(
    ("average", "change", "fixed"), [(mean, clipped, False), (clipped_mean, list, True)]
)
def test_a_reference_clips_where_the_towers_do(average: Any, change: Any, fixed: bool) -> None:
    """If it takes the rows of one tower: before or after averaging."""

    def last(of_towers: Any) -> Any:
        return average(of_towers[-1:])

    model = {"change": change} if fixed else {"change": change, "loss": normalized}
    reference = alone(**model, average=average, rows=8 if fixed else None)

    assert states(several(**model, average=average), reference, rows=(16, 8)) == ("kept", "kept")
    assert messages(several(**model, average=last), reference, rows=(16, 8))


def test_gradients_clipped_twice_prove_nothing() -> None:
    """Each tower clips, and the average is clipped."""
    twice = {"average": clipped_mean, "change": clipped, "loss": normalized}

    assert "clipped" in cannot(several(**twice), alone(**twice), rows=(16, 8))


def test_sums_as_losses() -> None:
    program, reference = several(loss=summed, average=tf.add_n), alone(loss=summed)

    assert states(program, reference) == ("kept", "kept")
    assert "divided by the number of towers" in messages(several(loss=summed), reference)
    for fixed in (None, 8):
        reason = cannot(program, alone(loss=summed, rows=fixed), rows=(16, 8))
        assert "a loss that is a sum over rows may be the cause" in reason
        assert states(several(loss=summed), alone(loss=summed, rows=fixed), rows=(16, 8)) == (
            "kept",
            "kept",
        )


def over(number: int) -> Model:
    """A mean over a constant number of rows."""
    return lambda x, y: summed(x, y) / number


def test_a_constant_number_of_rows() -> None:
    """The reference divides by the constant even if it is fed more rows."""
    assert states(several(loss=over(8)), alone(loss=over(8)), rows=(16, 8))[0] == "kept"
    assert states(several(loss=over(8)), alone(loss=over(16))) == ("kept", "kept")
    assert "a loss that is a sum over rows may be the cause" in cannot(
        several(loss=over(8), average=tf.add_n), alone(loss=over(8)), rows=(16, 8)
    )


def test_parts_of_a_constant_size() -> None:
    def parts(x: Any, i: int, _n: int) -> Any:
        return x[8 * i : 8 * (i + 1)]

    gradients, weights = verdicts(several(shared=True, cut=parts), alone(cut=parts), rows=(16, 8))

    assert (gradients.state, weights.state) == ("kept", "kept")
    assert "each tower's rows alone" in str(gradients.note)
    with_draws = {"loss": with_dropout, "cut": parts}
    assert states(several(shared=True, **with_draws), alone(**with_draws), rows=(16, 8)) == (
        "kept",
        "kept",
    )


def test_a_fed_number_of_rows() -> None:
    def numbers() -> dict[str, Any]:
        return {"n": tf1.placeholder(tf.int32, [], name="n")}

    def loss(x: Any, y: Any, n: Any) -> Any:
        return summed(x, y) / tf.cast(n, tf.float32)

    def batch(rng: Any, n: int) -> dict[str, Any]:
        return {**pairs.batch(rng, n), "n": 8}

    reference = alone(loss=loss, numbers=numbers)
    assert states(several(loss=loss, numbers=numbers), reference, rows=(16, 8), batch=batch) == (
        "kept",
        "kept",
    )


def test_equal_rows_show_nothing() -> None:
    def batch(_rng: Any, n: int) -> dict[str, Any]:
        return {"x": np.ones([n, 4]), "y": np.ones([n, 1])}

    assert cannot(batch=batch).startswith(
        "all rows that are fed to 'x:0' and 'y:0' are equal, so a mistake with single rows would"
    )


def test_an_unexplained_difference_is_not_a_finding() -> None:
    def other(x: Any, y: Any) -> Any:
        return hidden(tf.sin(x), y)

    reason = cannot(several(loss=other), alone())

    assert "no known mistake explains the difference; compare on other rows: --batch" in reason


def test_dropout_with_fed_rates(fixtures: Path) -> None:
    fed = {"keep_prob:0": 0.5}
    build_towers, build_single, batch = (
        function(f"{fixtures}/programs/graph/mnist.py:{name}")
        for name in ("build_towers", "build_single", "batch")
    )

    evidence = judged(
        watched(build_towers, batch, 16, 2, **fed), watched(build_single, batch, 8, 1, **fed)
    )
    report = verify(evidence, only=["gradients-equal", "weights-equal"])
    gradients, weights = of_rules(report, "gradients-equal", "weights-equal")

    assert (gradients.state, weights.state) == ("kept", "kept")


def test_weights_if_the_reference_takes_the_rows_of_a_tower() -> None:
    """The reference takes a step with the mean of its gradients; statistics of rows are not
    compared."""

    def adam_and_statistics(average: Callable[[Any], Any] = mean) -> dict[str, Any]:
        return {"loss": normalized, "average": average, "optimizer": tf1.train.AdamOptimizer}

    program, reference = several(**adam_and_statistics()), alone(**adam_and_statistics(), rows=8)

    assert states(program, reference, rows=(16, 8)) == ("kept", "kept")
    gradients, weights = verdicts(
        several(**adam_and_statistics(lambda of_towers: of_towers[1])), reference, rows=(16, 8)
    )
    assert (gradients.state, weights.state) == ("broken", "broken")


def slices(of_towers: Any) -> Any:
    """Returns the mean of gradients, for a table as slices of the rows that were looked up."""
    if not isinstance(of_towers[0], tf.IndexedSlices):
        return mean(of_towers)
    values = tf.concat([each.values for each in of_towers], 0) / len(of_towers)
    indices = tf.concat([each.indices for each in of_towers], 0)
    return tf.IndexedSlices(values, indices, of_towers[0].dense_shape)


@pytest.mark.parametrize("rows", [None, 8])
def test_table_rows_if_the_reference_takes_the_rows_of_a_tower(rows: int | None) -> None:
    of_table = {"loss": of_words, "placeholders": tokens, "average": slices}

    gradients, weights = verdicts(
        several(**of_table),
        alone(**of_table, rows=rows),
        rows=(16, 8),
        batch=sentences,
        statistics_per_tower=True,
    )

    assert gradients.state == "kept"
    assert weights.reason == (
        rows
        and "steps cannot be compared: single runs on the rows of one tower at a time, and a step "
        "takes only some rows of the gradient of table"
    )


def test_steps_with_gradients_that_are_clipped_twice_are_not_compared() -> None:
    def hardly(pairs_: Any) -> Any:
        return [(tf.clip_by_value(gradient, -100, 100), each) for gradient, each in pairs_]

    def hardly_mean(of_towers: Any) -> Any:
        return mean([tf.clip_by_value(gradient, -100, 100) for gradient in of_towers])

    twice = {"average": hardly_mean, "change": hardly}
    gradients, weights = verdicts(several(**twice), alone(**twice, rows=8), rows=(16, 8))

    assert gradients.state == "kept"
    assert weights.reason == (
        "steps cannot be compared: single runs on the rows of one tower at a time, and the "
        "gradient of one/w is clipped or otherwise changed"
    )


def test_alternating_train_ops_are_not_one_step() -> None:
    def in_turn(build: Build) -> Build:
        def built(num_gpus: int = 2) -> dict[str, Any]:
            step = build(num_gpus) if num_gpus > 1 else build()
            graph = tf1.get_default_graph()
            updates = [op for op in graph.get_operations() if "ApplyGradient" in op.type]
            return {**step, "train_op": updates}

        return built

    gradients, weights = verdicts(in_turn(several()), lambda: in_turn(alone())(1))

    assert gradients.state == "kept"
    assert weights.reason == (
        "several ops of built train different variables, and their results depend on the order "
        "of these ops"
    )


def test_row_statistics_outside_the_loss() -> None:
    def loss(x: Any, y: Any) -> Any:
        other = normalized(x, y)
        return other - tf.stop_gradient(other) + tf.reduce_mean(y)

    gradients, _ = verdicts(several(loss=loss), alone(loss=loss))

    assert gradients.state == "kept"
    assert "because of batch statistics (FusedBatchNormV3 model/Fused" in str(gradients.note)


def test_a_saved_case_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pair = ProgramPair.from_programs(
        watched(SUM, pairs.batch, 16, 2), watched(alone(), pairs.batch, 16, 1), "simulated"
    )

    first = measure(pair, None, Conditions())
    again = measure(pair, Case.load(Path(first.saved)), Conditions())

    for name, found in first.trials[0].found.items():
        assert np.array_equal(again.trials[0].found[name], found)


def test_only_steps_on_as_many_rows_are_timed() -> None:
    def pair(rows: int) -> ProgramPair:
        program, reference = watched(several(), pairs.batch), alone(rows=rows)
        return ProgramPair.from_programs(
            program, watched(reference, pairs.batch, rows, 1), ("simulated")
        )

    with pytest.raises(CannotRun, match="single takes 8 rows at once, but build takes 16"):
        TimedPair(pair(8), None, rows=0)
    feeding = pair(16).feeding(None)
    assert isinstance(feeding, ReplayedFeeding)
    assert feeding.takes_all_once


def test_another_number_of_rows_is_refused() -> None:
    with pytest.raises(InputError, match="a batch of 32 rows: build was fed 16; omit the number"):
        judged(watched(several(), pairs.batch), watched(alone(), pairs.batch), rows=32)
