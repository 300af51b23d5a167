"""Programs that cannot be run or compared: the errors name the object, the reason and the fix."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import pairs
from support.builders import script

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import Measurement
from placement_checks.core.missing import Missing
from placement_checks.core.target import Script
from placement_checks.numerics.comparing import differing_variables
from placement_checks.run.compare.measure import measure
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.sessions import Conditions
from placement_checks.run.feeding.batches import Case
from placement_checks.run.runnable import TimeLimit
from placement_checks.tf.process_state import Behavior

tf1 = tf.compat.v1


def refused(
    towers: Callable[..., Any] = pairs.towers,
    single: Callable[..., Any] | None = None,
    batch: Any = pairs.batch,
    **conditions: Any,
) -> str:
    """The error of a bad pair of programs; without a reference, of the program with itself."""
    with pytest.raises((InputError, CannotRun)) as error:
        pairs.measured(towers, single or partial(towers, 1), batch, **conditions)
    return f"{type(error.value).__name__}: {error.value}"


def with_loss(loss: Callable[[Any, Any], Any]) -> Callable[..., dict[str, Any]]:
    return partial(pairs.towers, loss=lambda x, y: loss(pairs.predicted(x), y))


def mean_of(value: Any) -> Any:
    return tf.reduce_mean(value**2)


def test_a_reference_with_towers_is_refused() -> None:
    assert refused(single=partial(pairs.towers, 2)) == (
        "InputError: single: it has 2 towers, on /device:GPU:0 and /device:GPU:1, but a reference "
        "has one tower; name the program for one GPU as the reference"
    )


def test_variables_with_other_names_and_shapes() -> None:
    def named(num_gpus: int = 2, **bent: Any) -> dict[str, Any]:
        loss = lambda x, y: mean_of(pairs.predicted(x, **bent) - y)  # noqa: E731
        return pairs.towers(num_gpus, loss=loss)

    assert refused(partial(named, names=("weights", "b")), pairs.single) == (
        "CannotRun: variables are compared by name, but towers has no variable w; fix "
        "names-portable first"
    )
    assert refused(partial(named, names=("w_1", "b_1")), pairs.single) == (
        "CannotRun: variables are compared by name, but towers has no variable w (the nearest "
        "is w_1), nor 1 other variable of the reference; fix names-portable first"
    )
    assert refused(partial(named, width=2), pairs.single) == (
        "CannotRun: variable w has shape (4, 2) in towers and (4, 1) in the reference; fix "
        "names-portable first"
    )


def test_inputs_with_other_names_and_no_batch_function() -> None:
    """Random rows are drawn for each name: the two programs would get different rows."""

    def renamed() -> dict[str, Any]:
        step = pairs.single()
        return {**step, "inputs": {"images": step["inputs"]["x"], "y": step["inputs"]["y"]}}

    assert refused(pairs.towers, renamed, None) == (
        "CannotRun: towers has the inputs x and y, and single images and y, so random rows would "
        "differ between them; give the inputs the same names in both programs, or pass a function "
        "that returns rows for all of these names: --batch train.py:batch"
    )


def test_equal_rows() -> None:
    def ones(_: Any, n: int) -> Mapping[str, Any]:
        return {"x": np.ones((n, 4), np.float32), "y": np.zeros((n, 1), np.float32)}

    assert refused(batch=ones) == (
        "CannotRun: all rows that are fed to 'x' and 'y' are equal, so a mistake with single rows "
        "would not show; let the batch function return different rows"
    )


def test_a_step_without_training() -> None:
    def still(num_gpus: int = 2, **says: Any) -> dict[str, Any]:
        step = pairs.towers(num_gpus)
        tf1.get_default_graph().clear_collection(tf1.GraphKeys.TRAIN_OP)
        return {**step, "train_op": tf.no_op(), **says}

    def silent(num_gpus: int = 2) -> dict[str, Any]:
        with tf.device("/gpu:0"):
            x, y = tf1.placeholder(tf.float32, [None, 4]), tf1.placeholder(tf.float32, [None, 1])
            return {"loss": pairs.squared_error(x, y), "inputs": {"x": x, "y": y}}

    assert refused(still, pairs.single) == (
        "InputError: towers: its step trains no variable; return the op that trains as train_op"
    )
    assert refused(pairs.towers, still).startswith("InputError: single: its step trains no")
    assert refused(silent, pairs.single) == (
        "CannotRun: no op of towers applies a gradient; return the op that trains as train_op"
    )


def test_a_rate_of_zero_changes_nothing() -> None:
    resting = partial(pairs.towers, optimizer=lambda: tf1.train.GradientDescentOptimizer(0.0))

    assert refused(resting) == (
        "InputError: single: 3 steps changed none of its variables; return the op that trains as "
        "train_op"
    )


def test_programs_without_declared_inputs() -> None:
    def silent(num_gpus: int = 2) -> dict[str, Any]:
        return {"train_op": pairs.towers(num_gpus)["train_op"]}

    assert refused(silent, pairs.single) == (
        "CannotRun: towers declares no inputs; return them from the function that builds the "
        "graph: {'inputs': [{'x': x, 'y': y}, …]}"
    )


def test_unfed_placeholders() -> None:
    def loss(predicted: Any, y: Any) -> Any:
        return mean_of(predicted - y) / tf1.placeholder(tf.float32, [], name="temperature")

    message = refused(with_loss(loss))

    assert message.startswith(
        "CannotRun: nothing feeds the placeholder 'temperature' of towers, built at "
    )
    assert f"{Path(__file__).name}:" in message
    assert message.endswith(
        "list it in the inputs that its builder returns, and let the batch function return its "
        "value"
    )


def test_gradients_from_an_accumulator() -> None:
    def loss(predicted: Any, y: Any) -> Any:
        sums = tf1.ConditionalAccumulator(tf.float32, shape=[])
        return mean_of(predicted - y) * sums.take_grad(1)

    message = refused(with_loss(loss))

    assert (
        "towers takes gradients from an accumulator, 'ResourceAccumulatorTakeGradient' ("
        in message
    )
    assert message.endswith(", which may hold gradients of other runs")


def test_rows_from_a_pipeline() -> None:
    def loss(predicted: Any, y: Any) -> Any:
        rows = tf.data.Dataset.from_tensors([[1.0]]).repeat()
        return mean_of(predicted - y + tf1.data.make_one_shot_iterator(rows).get_next())

    message = refused(with_loss(loss))

    assert "towers reads rows from 'IteratorGetNext' (IteratorGetNext), built at " in message
    assert "make it a placeholder_with_default, and list that in its inputs" in message


def test_an_enabled_random_op() -> None:
    def by_rate(rate: float) -> Callable[..., Any]:
        return with_loss(lambda predicted, y: mean_of(tf.nn.dropout(predicted, rate) - y))

    def by_default(num_gpus: int = 2) -> dict[str, Any]:
        keep = tf1.placeholder_with_default(0.5, [], name="keep_prob")
        return with_loss(
            lambda predicted, y: mean_of(tf1.nn.dropout(predicted, rate=1 - keep) - y)
        )(num_gpus)

    def stateless(rate: Any) -> Callable[..., Any]:
        return with_loss(
            lambda predicted, y: mean_of(
                tf.nn.experimental.stateless_dropout(predicted, rate, seed=(1, 2)) - y
            )
        )

    for program in (by_rate(0.5), stateless(0.5)):
        message = refused(program)
        assert message.startswith("CannotRun: the gradients of towers depend on the random op ")
        assert message.endswith(
            "let the builder take an argument that disables it, such as a dropout rate, and name "
            "a target that gives this argument"
        )
    assert refused(by_default).endswith(
        "feed 'keep_prob' the value that disables it: list it in the inputs that the builder "
        "returns, and let the batch function return its value"
    )


@pytest.mark.parametrize(
    "factor",
    [
        lambda tower: 1 + 1e-3 * tf.random.stateless_normal([], [tower, 7]),
        lambda tower: tf.random.stateless_uniform([], [tower, 7], 1, 40, tf.int32),
        lambda tower: tf.random.stateless_uniform([1, 1], [tower, 7], 1, 40, tf.int32),
    ],
    ids=["small", "integer", "one-element"],
)
def test_one_random_number_for_all_rows(factor: Callable[[int], Any]) -> None:
    towers = iter((1, 2, 3))

    def loss(x: Any, y: Any) -> Any:
        drawn = tf.cast(factor(next(towers)), tf.float32)
        return mean_of(drawn * pairs.predicted(x) - y)

    message = refused(partial(pairs.towers, loss=loss))

    assert message.startswith("CannotRun: the gradients of towers depend on the random op ")


def test_a_random_op_of_a_whole_program() -> None:
    noisy = with_loss(lambda predicted, y: mean_of(tf1.nn.dropout(predicted, rate=0.5) - y))
    pair = pairs.pair(noisy, partial(noisy, 1))
    towers, reference = (
        replace(each.built, program=script("train.py")) for each in (pair.towers, pair.reference)
    )

    with pytest.raises(CannotRun) as error:
        measure(
            ProgramPair.from_programs(towers, reference, "simulated"), pairs.batch, Conditions()
        )

    assert str(error.value).endswith(
        "; pass a value that disables it, such as a dropout rate: -- ARGS, or --let NAME=VALUE"
    )


@pytest.mark.parametrize("stateless", [False, True])
def test_a_disabled_random_op_is_allowed(stateless: bool) -> None:
    def towers(num_gpus: int = 2) -> dict[str, Any]:
        rate = tf1.placeholder_with_default(0.5, [], name="rate")

        def loss(x: Any, y: Any) -> Any:
            drop = tf.nn.experimental.stateless_dropout if stateless else tf.nn.dropout
            seed = {"seed": (1, 2)} if stateless else {}
            return mean_of(drop(pairs.predicted(x), rate, **seed) - y)

        step = pairs.towers(num_gpus, loss=loss)
        inputs = step["inputs"] if num_gpus > 1 else [step["inputs"]]
        rated = [{**mapping, "rate": rate} for mapping in inputs]
        return {**step, "inputs": rated if num_gpus > 1 else rated[0]}

    def batch(rng: np.random.Generator, n: int) -> Mapping[str, Any]:
        return {**pairs.batch(rng, n), "rate": np.float32(0)}

    measured = pairs.measured(towers, lambda: towers(1), batch)

    assert measured.trials[0].found.keys() == {"w", "b"}


def test_nan_in_the_reference_names_the_op() -> None:
    def loss(predicted: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.sqrt(-tf.abs(predicted), name="root") * y)

    message = refused(with_loss(loss))

    assert message.startswith(
        "InputError: single: its gradient of w is NaN or infinite; the first op that yields such "
        "a value is root, built at "
    )
    assert message.endswith(
        "; pass rows on which the reference can be trained: --batch train.py:batch"
    )


def test_nan_in_the_towers_is_reported_with_its_op() -> None:
    def loss(x: Any, y: Any) -> Any:
        small = tf.cast(tf.shape(x)[0] < 16, tf.float32)
        return tf.reduce_mean(tf.sqrt(tf.abs(pairs.predicted(x)) * (1 - 2 * small)) * y)

    towers = partial(pairs.towers, loss=loss)
    measured = pairs.measured(towers, partial(towers, 1))

    op, where = measured.trials[0].not_finite["w"]
    assert op == "Sqrt"
    assert where is not None
    assert Path(where.partition(":")[0]).name == Path(__file__).name


def array(**arrays: Any) -> Callable[..., Any]:
    return lambda _rng, n: {
        name: np.ones([n + extra, *shape], dtype) for name, (extra, shape, dtype) in arrays.items()
    }


X, Y = (0, [4], np.float32), (0, [1], np.float32)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            lambda _rng, _n: [1],
            "it returned list; return arrays by the names of the inputs: x and y",
        ),
        (
            array(x=X, label=Y),
            "it returned no array for the input 'y'; add it to label and x",
        ),
        (array(x=X, y_=Y), "it returned no array for the input 'y'; did you mean 'y_'?"),
        (
            array(),
            "it returned no array for the input 'x'; return arrays by the names of the inputs: x "
            "and y",
        ),
        *(
            (
                lambda _rng, _n, value=value: {"x": value},
                f"the value it returned for 'x' is not an array, but a {kind}; return a dense "
                "array with rows of one shape, such as padded rows",
            )
            for value, kind in (
                (tf.ragged.constant([[1.0], [1.0, 2.0]]), "RaggedTensor"),
                (tf1.SparseTensorValue([[0, 0]], [1.0], [16, 4]), "SparseTensorValue"),
                ({1.0}, "set"),
            )
        ),
        (
            array(x=(1, [4], np.float32), y=Y),
            "it returned 17 rows for 'x' instead of 16; return as many rows as requested; arrays "
            "without rows have rank 0",
        ),
        (
            lambda _rng: {},
            "batch(rng, 16) raised TypeError: batch_of_mine() takes 1 positional argument but 2 "
            "were given; it is called with a numpy.random.Generator and the number of rows "
            "of the global batch",
        ),
    ],
)
def test_invalid_batch_functions(batch: Any, message: str) -> None:
    batch.__qualname__ = "batch_of_mine"

    assert refused(batch=batch) == f"InputError: batch_of_mine: {message}"


class Unreadable:
    def __array__(self, *_: object, **__: object) -> None:
        raise RuntimeError("on another device")


@pytest.mark.parametrize(
    ("batch", "deed"),
    [
        (lambda _rng, _n: dict[str, Any]()["x"], "raised KeyError: 'x'"),
        (lambda _rng, _n: {"x": Unreadable()}, "raised RuntimeError: on another device"),
        (lambda _rng, _n: sys.exit(0), "called sys.exit(0)"),
    ],
)
def test_a_batch_function_that_raises_or_exits(batch: Any, deed: str) -> None:
    message = refused(batch=batch)

    assert message.startswith(f"InputError: <lambda>: batch(rng, 16) {deed}; look at ")
    assert re.search(r"test_bad_input\.py:\d+$", message)


@pytest.fixture(params=[True, False], ids=["shapes of version 2", "of version 1"])
def _shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    before = Behavior.current()
    replace(before, v2_tensorshape=request.param).restore()
    yield
    before.restore()


@pytest.mark.usefixtures("_shapes")
def test_arrays_that_do_not_fit_the_placeholders() -> None:
    assert refused(batch=array(x=(0, [5], np.float32), y=Y)) == (
        "InputError: input 'x' of towers: the array has shape (8, 5), the placeholder (None, 4); "
        "let the batch function return arrays that the placeholder takes"
    )
    assert refused(batch=array(x=(0, [4], str), y=Y)) == (
        "InputError: input 'x' of towers: the array holds <U1, the placeholder takes float32; let "
        "the batch function return arrays that the placeholder takes"
    )


def fed_as(dtype: Any, value: Any) -> str:
    """The error of rows with this value, which are fed to placeholders of a dtype; "" if none."""

    def loss(x: Any, y: Any) -> Any:
        return pairs.squared_error(tf.cast(x, tf.float32), tf.cast(y, tf.float32))

    def rows(rng: np.random.Generator, n: int) -> dict[str, Any]:
        x = rng.integers(0, 2, [n, 4]).astype(np.asarray(value).dtype)
        x[3, 0] = value
        return {"x": x, "y": rng.integers(0, 2, [n, 1])}

    towers = partial(pairs.towers, loss=loss, dtype=dtype)
    try:
        pairs.measured(towers, partial(towers, 1), rows)
    except InputError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("dtype", "value", "lost"),
    [
        (tf.int32, 0.5, "0.5 (float64)"),
        (tf.int32, np.float32("nan"), "nan (float32)"),
        (tf.uint8, 300, "300 (int64)"),
        (tf.uint8, -1, "-1 (int64)"),
        (tf.bool, 2, "2 (int64)"),
        (tf.float32, 1 + 2j, "(1+2j) (complex128)"),
        (tf.float32, np.datetime64("2026-01-01"), "datetime64[D]"),
    ],
)
def test_values_that_a_placeholder_would_change(dtype: Any, value: Any, lost: str) -> None:
    expected = f"the array holds {lost}, which {dtype.name} cannot hold"

    assert fed_as(dtype, value) == expected


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (tf.int32, 7.0),
        (tf.uint8, 255),
        (tf.bool, 1),
        (tf.float32, 1 / 3),
        (tf.float32, 1 + 0j),
        (tf.bfloat16, 1 / 3),
        (tf.int64, np.uint8(9)),
    ],
)
def test_values_that_a_placeholder_takes(dtype: Any, value: Any) -> None:
    assert fed_as(dtype, value) == ""


def test_batches_that_cannot_be_cut() -> None:
    assert refused(rows=7) == (
        "InputError: towers: 7 rows cannot be split evenly among its 2 towers; take a multiple of "
        "2, "
        "such as 8"
    )
    assert refused(partial(pairs.towers, rows=7), partial(pairs.towers, 1, rows=16)) == (
        "InputError: single: it takes batches of 16 rows, but towers takes 14; build both for the "
        "same global batch, or with None in the placeholders' shapes"
    )
    assert refused(partial(pairs.towers, rows=8), pairs.single, rows=20) == (
        "InputError: a batch of 20 rows: the programs take 16; omit the number"
    )
    assert refused(shares=(1, 2, 3)) == (
        "InputError: gradients-equal.shares names 3 towers, but towers has inputs for 2; give "
        "one number per tower"
    )


def endless(predicted: Any, y: Any) -> Any:
    value = tf.while_loop(
        lambda i, _: i < 10**9, lambda i, value: (i + 1, value * 1.0), [0, predicted]
    )
    return mean_of(value[1] - y)


def over_time(program: Any = None, seconds: float = 0.0) -> str:
    """The error of a comparison above this time limit; the program is its own reference."""
    pair = pairs.pair(with_loss(endless), pairs.single)
    towers, reference = (
        replace(each.built, program=program or each.built.program)
        for each in (pair.towers, pair.reference)
    )
    limit = TimeLimit.from_now(seconds)
    limited = ProgramPair.from_programs(towers, reference, "auto", limit=limit)
    with pytest.raises(CannotRun) as caught:
        measure(limited, pairs.batch, Conditions())
    return str(caught.value)


@pytest.mark.parametrize(("seconds", "reached"), [(0.0, "initial values"), (1.0, "first run")])
def test_a_default_comparison_has_a_time_limit(seconds: float, reached: str) -> None:
    assert over_time(seconds=seconds) == (
        f"the comparison was ended by its time limit, {seconds:g} s, at: {reached}; there is "
        "no time limit with --reference TARGET, your program for one GPU"
    )


def with_slow_steps(num_gpus: int = 2, scale: float = 1.0) -> dict[str, Any]:
    """The gradients take no time, but a step never ends."""
    built = pairs.towers(num_gpus, loss=lambda x, y: scale * mean_of(pairs.predicted(x) - y))
    with tf.control_dependencies([built["train_op"]]):
        step = endless(tf.zeros([1]), tf.zeros([1]))
    return {**built, "train_op": step}


def limited(**options: Any) -> Measurement:
    pair = pairs.pair(partial(with_slow_steps, **options), partial(with_slow_steps, 1))
    limit = TimeLimit.from_now(3.0)
    towers, reference = (replace(each, limit=limit) for each in (pair.towers, pair.reference))
    return measure(replace(pair, towers=towers, reference=reference), pairs.batch, Conditions())


def test_gradients_count_that_were_compared_within_the_time_limit() -> None:
    measured = limited()

    assert not differing_variables(measured.trials[0], measured.precisions)
    assert isinstance(measured.trajectory, Missing)
    assert measured.trajectory.reason == (
        "the comparison was ended by its time limit, 3 s, at: reference step 1 of 3"
    )


def test_without_steps_different_gradients_are_no_finding() -> None:
    """Equal weights after some steps could show that the learning rate compensates."""
    with pytest.raises(CannotRun, match="time limit, 3 s, at: reference step 1 of 3"):
        limited(scale=2.0)


@pytest.mark.parametrize(
    ("program", "reference"),
    [
        (script("train.py", ("--num_gpus={gpus}",)), "'train.py --num_gpus=1'"),
        (script("train.py", ("-g", "{gpu_list}")), "'train.py -g 0'"),
        (script("train.py", ("--rows=8",)), "TARGET, your program for one GPU"),
        (script("train.py"), "TARGET, your program for one GPU"),
        (script("train.py", let=(("N", "{gpus}"),)), "TARGET, your program for one GPU"),
    ],
    ids=str,
)
def test_the_suggested_reference_has_valid_arguments(program: Script, reference: str) -> None:
    assert over_time(program).endswith(f"; there is no time limit with --reference {reference}")


def test_a_run_over_its_time_limit_is_ended() -> None:
    begin = time.perf_counter()

    assert refused(with_loss(endless), seconds=1.0) == (
        "InputError: towers: one run of it took longer than 1 s; allow more time, --set "
        "gradients-equal.seconds=N, or use fewer rows, --set gradients-equal.rows=N"
    )
    assert time.perf_counter() - begin < 30


def test_an_op_that_fails_is_named_with_its_line() -> None:
    def loss(predicted: Any, y: Any) -> Any:
        return mean_of(tf.reshape(predicted - y, [3, -1], name="in_threes"))

    message = refused(with_loss(loss))

    assert message.startswith(
        "InputError: towers: running it failed: Input to reshape is a tensor with 8 values"
    )
    assert "(op in_threes" in message
    assert ", built at " in message
    assert f"{Path(__file__).name}:" in message


def test_ops_without_cpu_kernel() -> None:
    def loss(x: Any, y: Any) -> Any:
        size = tf.raw_ops.CudnnRNNParamsSize(
            num_layers=1, num_units=1, input_size=1, T=tf.float32, S=tf.int32
        )
        return mean_of(pairs.predicted(x) - y) / tf.cast(size[0], tf.float32)

    message = refused(partial(pairs.towers, loss=loss))

    assert message == (
        "CannotRun: single cannot run on CPU devices: No OpKernel was registered to support Op "
        "'CudnnRNNParamsSize'"
    )


def test_a_file_that_is_not_a_case(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    (tmp_path / "text.npz").write_text("nonsense")

    for name in ("other.npz", "text.npz", "nowhere.npz"):
        with pytest.raises(InputError) as error:
            Case.load(tmp_path / name)
        assert error.value.object == str(tmp_path / name)
        assert error.value.message.startswith("is not a saved case: ")
        assert error.value.fix == "name the .npz file that a failed comparison saved"


def test_inputs_other_than_placeholders() -> None:
    def with_input(value: Any) -> Callable[..., Any]:
        def towers(num_gpus: int = 2) -> dict[str, Any]:
            step = pairs.towers(num_gpus)
            inputs = step["inputs"] if num_gpus > 1 else [step["inputs"]]
            wrong = [{**mapping, "x": value()} for mapping in inputs]
            return {**step, "inputs": wrong if num_gpus > 1 else wrong[0]}

        return towers

    assert refused(with_input(lambda: None), pairs.single) == (
        "InputError: towers: its input 'x' must be a placeholder, but is None; return the "
        "placeholder itself"
    )
    assert refused(with_input(lambda: tf1.sparse_placeholder(tf.float32)), pairs.single) == (
        "CannotRun: the input 'x' of towers is a SparseTensor; rows are fed as arrays"
    )
    assert refused(with_input(lambda: tf.Variable(1.0)), pairs.single) == (
        "CannotRun: the input 'x' of towers is a ResourceVariable; rows are fed as arrays"
    )


@pytest.mark.parametrize(
    ("gradients", "shown"),
    [(7, "7"), ([7], "[7]"), ([(None, "w")], "[(None, 'w')]")],
)
def test_gradients_that_are_not_pairs_with_variables(gradients: Any, shown: str) -> None:
    def with_wrong_gradients(num_gpus: int = 2) -> dict[str, Any]:
        return {**pairs.towers(num_gpus), "gradients": gradients}

    assert refused(with_wrong_gradients) == (
        f"InputError: towers: its gradients are {shown}; return pairs of a gradient and its "
        "variable: [(gradient, variable), …]"
    )


def test_generated_rows_may_not_suit_a_correct_program() -> None:
    message = refused(
        with_loss(lambda predicted, y: tf.reduce_mean(tf.math.sqrt(y) * predicted**2)), batch=None
    )

    assert message.startswith("CannotRun: single: its gradient of w is NaN or infinite; ")
    assert message.endswith(
        "; pass rows on which the reference can be trained: --batch train.py:batch"
    )


def test_ragged_rows_and_a_fed_rate() -> None:
    def ragged(_rng: np.random.Generator, n: int) -> dict[str, Any]:
        return {"x": [[1.0] * (4 + row % 2) for row in range(n)], "y": np.ones((n, 1))}

    def fed(num_gpus: int = 2) -> dict[str, Any]:
        rate = tf1.placeholder_with_default(0.0, [], name="rate")
        loss = with_loss(lambda predicted, y: mean_of(tf.nn.dropout(predicted, rate) - y))
        step = loss(num_gpus)
        inputs = step["inputs"] if num_gpus > 1 else [step["inputs"]]
        rated = [{**mapping, "rate": rate} for mapping in inputs]
        return {**step, "inputs": rated if num_gpus > 1 else rated[0]}

    assert refused(batch=ragged).startswith(
        f"InputError: {ragged.__qualname__}: the value it returned for 'x' is not an array, but a "
        "list of rows of different shapes ("
    )
    assert refused(
        fed, batch=lambda rng, n: {**pairs.batch(rng, n), "rate": np.float32(0.5)}
    ).endswith("; 'rate' is fed 0.5; let the batch function return the value that disables it")
