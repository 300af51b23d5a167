"""Training steps of many kinds as ordinary graphs that the rules can check."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.eager_programs import devices, loss_of, rows, types, updates, watched, weights

from placement_checks import Report, place, verify, watch
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.op_types import COLLECTIVES
from placement_checks.core.placement import producer_of
from placement_checks.core.program import CapturedProgram, Gradient
from placement_checks.run.preconditions import check_comparable
from placement_checks.run.runnable import make_runnable

GPUS = ["/gpu:0", "/gpu:1"]
BATCH = 8
COPIES = ["w", "w/replica_1"]


def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices(rows(2 * BATCH)).batch(BATCH)


def loop(strategy: Any, compiled: bool = False) -> None:
    """The loop of TensorFlow's guide to custom training."""
    step = step_of(strategy, compiled)
    for x in strategy.experimental_distribute_dataset(dataset()):
        step(x)


def step_of(strategy: Any, compiled: bool = False) -> Any:
    with strategy.scope():
        w = weights()
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build([w])

    def replica(x: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.square(tf.matmul(x, w))[:, 0]
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    @tf.function(jit_compile=compiled)
    def step(x: Any) -> Any:
        return strategy.reduce("sum", strategy.run(replica, args=(x,)), axis=None)

    return step


def mirrored(*sums: Any) -> Any:
    return tf.distribute.MirroredStrategy(GPUS, *sums)


MIRRORED: dict[str, tuple[Callable[[], Any], str]] = {
    "its own sums": (mirrored, "CollectiveReduceV2"),
    "all GPUs": (tf.distribute.MirroredStrategy, "CollectiveReduceV2"),
    "one device": (lambda: mirrored(tf.distribute.ReductionToOneDevice()), "AddN"),
    "NCCL": (lambda: mirrored(tf.distribute.NcclAllReduce()), "NcclAllReduce"),
    "hierarchical": (lambda: mirrored(tf.distribute.HierarchicalCopyAllReduce()), "AddN"),
}


def names(built: CapturedProgram) -> set[str]:
    return {variable.name for variable in built.requested.variables}


def judged(program: Callable[[], object]) -> tuple[CapturedProgram, Report]:
    with watch(2, name="program", eager=True) as code:
        program()
    assert code.built is not None
    return code.built, verify(place(code, gpus=2))


@pytest.mark.parametrize("name", MIRRORED)
def test_a_loop_under_mirrored_strategy(name: str) -> None:
    make, sums = MIRRORED[name]

    built, report = judged(lambda: loop(make()))

    assert devices(built, COPIES) == ["/device:GPU:0", "/device:GPU:1"]
    assert sums in types(built)
    assert "CollectiveReduceV2" not in types(built) - {sums}
    assert built.requested.step.inputs == [["x:0"], ["x_1:0"]]
    assert [array.shape for array in built.fed.values()] == [(4, 3), (4, 3)]
    assert [applied.variable for applied in built.applied] == ["w"]
    assert report.count("broken") == 0
    assert report.count("kept") >= 14


def test_ordering_tokens_are_not_variables() -> None:
    built = watched(lambda: loop(mirrored()))

    assert "CollectiveReduceV2" in types(built)
    assert not [name for name in names(built) if "Variable" in name]


@pytest.mark.parametrize("given", [(GPUS, "/cpu:0"), ()])
def test_a_loop_under_central_storage_strategy(given: Any) -> None:
    strategy = tf.distribute.experimental.CentralStorageStrategy

    built, report = judged(lambda: loop(strategy(*given)))

    assert devices(built, ["w"]) == ["/device:CPU:0"]
    assert built.requested.step.inputs == [["x:0"], ["x_1:0"]]
    assert report.count("broken") == 0
    assert report.count("kept") >= 15


@pytest.mark.parametrize("name", ["none", "one device"])
def test_a_loop_on_one_device(name: str) -> None:
    made = {
        "none": tf.distribute.get_strategy,
        "one device": lambda: tf.distribute.OneDeviceStrategy("/gpu:0"),
    }

    built = watched(lambda: loop(made[name]()))

    assert devices(built, ["w"]) == ["/device:GPU:0"]  # asked for or not
    (gradient,) = [applied.gradient for applied in built.applied]
    assert isinstance(gradient, Gradient)
    assert len(built.requested.step.losses) == 1


def test_a_function_that_xla_compiles() -> None:
    built, report = judged(lambda: loop(mirrored(), compiled=True))

    assert devices(built, COPIES) == ["/device:GPU:0", "/device:GPU:1"]
    assert "ResourceApplyKerasMomentum" in types(built) or "AssignAddVariableOp" in types(built)
    assert report.count("broken") == 0


def towers(num_gpus: int = 2) -> None:
    with tf.device("/cpu:0"):
        w = weights()

    @tf.function
    def step(x: Any) -> Any:
        losses, gradients = [], []
        for number, part in enumerate(tf.split(x, num_gpus)):
            with tf.device(f"/gpu:{number}"):
                with tf.GradientTape() as tape:
                    losses.append(loss_of(w, part))
                gradients.append(tape.gradient(losses[-1], w))
        with tf.device("/cpu:0"):
            w.assign_sub(tf.add_n(gradients) / num_gpus)
            return tf.add_n(losses) / num_gpus

    step(rows())


@pytest.mark.smoke
def test_towers_by_hand() -> None:
    built, report = judged(towers)

    assert devices(built, ["w"]) == ["/device:CPU:0"]
    assert built.requested.step.losses == ("Identity:0",)
    assert len(built.requested.step.gradients_by_variable["w"]) == 2
    assert built.requested.strategy is None
    assert report.count("broken") == 0
    assert report.count("kept") >= 10


def test_each_call_of_a_function_takes_its_own_gradients() -> None:
    """The objective is a result of a function, too."""

    def program() -> None:
        w, unused = weights(), tf.Variable(1.0, name="unused")

        @tf.function
        def loss(x: Any) -> Any:
            return tf.reduce_mean(tf.square(tf.matmul(x, w)), name="errors")

        @tf.function
        def taken(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loss(x)
            return tape.gradient(value, [w, x, unused], output_gradients=tf.constant(2.0))[:2]

        @tf.function
        def step(x: Any) -> Any:
            sums = [tf.add_n(pair) for pair in zip(*map(taken, tf.split(x, 2)), strict=True)]
            w.assign_sub(sums[0])
            unused.assign_add(tf.reduce_sum(sums[1]))

        step(rows())

    placement = watched(program).requested
    calls = placement.step.gradient_calls

    assert len(calls) == 2
    (split,) = (op.name for op in placement.ops.values() if op.type == "Split")
    for number, call in enumerate(calls):
        (objective,) = call.objectives
        product = placement.ops[producer_of(objective)]
        while product.type != "MatMul":
            product = placement.ops[product.inputs[0]]
        part = f"{split}:{number}"
        assert product.inputs[0].removesuffix(":0") == part.removesuffix(":0")
        assert call.sources == ["w", part, "unused"]
        of_w, of_x, of_unused = call.gradients
        assert len(of_w) == len(of_x) == 1
        assert of_unused == ()
        (weight,) = call.weights
        assert placement.details.value(producer_of(weight)) == ("float32", (), 2.0)
        backward = {placement.ops[name].type for name in call.ops}
        assert backward >= {"MatMul", "Mul"}
        assert set(map(producer_of, (*of_w, *of_x))) <= set(call.ops)
    assert set(calls[0].ops).isdisjoint(calls[1].ops)


def test_replicas_take_gradients_of_their_own_losses() -> None:
    placement = watched(lambda: loop(mirrored())).requested

    first, second = placement.step.gradient_calls
    assert first.sources == second.sources == ["w"]
    devices = [
        {placement.ops[name].requested.index for name in call.ops} - {None}
        for call in (first, second)
    ]
    assert devices == [{0}, {1}]
    assert first.objectives != second.objectives


def test_ops_belong_to_the_replica_that_builds_them() -> None:
    """A function that all replicas call belongs to each of them; a sum to none."""

    def program() -> None:
        strategy = mirrored()
        with strategy.scope():
            w = weights()

        @tf.function
        def errors(x: Any) -> Any:
            return tf.square(tf.matmul(x, w), name="errors")

        def replica(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(errors(x))
            gradient = tape.gradient(loss, w)
            total = tf.distribute.get_replica_context().all_reduce("sum", gradient)
            w.assign_sub(tf.tanh(total, name="late"))

        @tf.function
        def step(x: Any) -> None:
            doubled = tf.add(x, x, name="before")
            strategy.run(replica, args=(doubled,))

        step(rows())

    placement = watched(program).requested
    assert placement.strategy is not None
    replica_of = placement.strategy.replica_of

    assert replica_of.keys() <= placement.ops.keys()
    for kind in ("MatMul", "Square", "Tanh", "Mean"):
        on = [op for op in placement.ops.values() if op.type == kind]
        assert {(op.requested.index, replica_of[op.name]) for op in on} == {(0, 0), (1, 1)}
    first, second = placement.step.gradient_calls
    assert {replica_of[name] for name in first.ops} == {0}
    assert {replica_of[name] for name in second.ops} == {1}
    assert "before" not in replica_of
    sums = [name for name, op in placement.ops.items() if op.type in COLLECTIVES | {"AddN"}]
    assert sums
    assert replica_of.keys().isdisjoint(sums)


def test_a_loop_inside_a_step_stays_a_loop() -> None:
    def program() -> None:
        w = weights()

        @tf.function
        def step(x: Any) -> None:
            total = tf.zeros_like(w)
            for _ in tf.range(2):
                with tf.GradientTape() as tape:
                    loss = loss_of(w, x)
                total += tape.gradient(loss, w)
            w.assign_sub(total)

        step(rows())

    built = watched(program)

    assert "While" in types(built)
    assert "AssignSubVariableOp" in types(built)


def over_distributed() -> None:
    strategy = mirrored()
    step = step_of(strategy)

    @tf.function
    def epoch(batches: Any) -> None:
        for x in batches:
            step(x)

    epoch(strategy.experimental_distribute_dataset(dataset()))


def over_iterator() -> None:
    with tf.device("/cpu:0"):
        w = weights()

    @tf.function
    def epoch(batches: Any) -> None:
        for x in iter(batches):
            updates(w, x)

    epoch(dataset())


@pytest.mark.parametrize("program", [over_distributed, over_iterator])
def test_a_loop_of_steps_is_one_iteration(program: Callable[[], None]) -> None:
    built = watched(program)

    assert "While" not in types(built)
    assert any(kind.startswith("Assign") or "Apply" in kind for kind in types(built))
    assert built.requested.step.objectives
    assert built.fed == {}


def test_iterators_of_a_strategy_are_on_the_gpus_of_their_replicas() -> None:
    def program() -> None:
        strategy = mirrored()
        step = step_of(strategy)

        @tf.function
        def next_step(batches: Any) -> None:
            step(next(batches))

        full_batches = dataset().unbatch().batch(BATCH, drop_remainder=True)
        batches = iter(strategy.experimental_distribute_dataset(full_batches))
        for _ in range(2):
            next_step(batches)

    _, report = judged(program)

    ops = report.evidence.ops.values()
    nexts = [op for op in ops if op.type.startswith("IteratorGetNext")]
    assert [op.assigned and op.assigned.short for op in nexts] == [
        "/device:GPU:0",
        "/device:GPU:1",
    ]


def test_steps_inside_a_dataset_are_refused() -> None:
    def program() -> None:
        w = weights()

        @tf.function
        def epoch(batches: Any) -> None:
            for x in batches:
                updates(w, x)

        epoch(dataset())

    with pytest.raises(InputError) as caught:
        watched(program)

    assert str(caught.value).startswith(
        "program: epoch takes its training steps inside of one op, "
    )
    assert str(caught.value).endswith(
        "Dataset), as a loop over a dataset does; "
        "write 'for batch in iter(dataset):', or call a tf.function for each batch"
    )


def in_a_loop_of_autograph() -> None:
    w = weights()

    @tf.function
    def step(x: Any) -> None:
        total = tf.zeros_like(w)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = loss_of(w, x)
            total += tape.gradient(loss, w)  # here
        w.assign_sub(total)

    step(rows())


def in_a_while_loop() -> None:
    w = weights()

    def body(number: Any, total: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(w, rows())
        return number + 1, total + tape.gradient(loss, w)  # here

    @tf.function
    def step(first: Any) -> None:
        _, total = tf.while_loop(lambda number, _: number < 3, body, [first, tf.zeros_like(w)])
        w.assign_sub(total)

    step(tf.constant(0))


@pytest.mark.parametrize("program", [in_a_loop_of_autograph, in_a_while_loop])
def test_gradients_inside_a_loop_get_a_remark(program: Callable[[], None]) -> None:
    built = watched(program)

    lines = inspect.getsourcelines(program)
    line = lines[1] + next(at for at, text in enumerate(lines[0]) if "# here" in text)
    assert built.gradients_inside == built.notes[-1]
    assert built.gradients_inside == (
        "step takes all its gradients inside a loop, at "
        f"tests/capture/eager/test_reading.py:{line}; take one step per call of the tf.function, "
        "or loop in Python"
    )


def test_numbers_of_gradients_inside_a_loop_are_not_compared() -> None:
    program = make_runnable(watched(in_a_loop_of_autograph), "simulated")

    with pytest.raises(CannotRun, match="step takes all its gradients inside a loop, at "):
        check_comparable(program, program)


def test_rules_report_that_gradients_are_inside_a_loop() -> None:
    def program() -> None:
        strategy = mirrored()
        with strategy.scope():
            w = weights()

        def replica(x: Any) -> None:
            total = tf.zeros_like(w)
            for _ in tf.range(2):
                with tf.GradientTape() as tape:
                    loss = loss_of(w, x)
                total += tape.gradient(loss, w)
            w.assign_sub(total)

        @tf.function
        def step(x: Any) -> None:
            strategy.run(replica, args=(x,))

        for x in strategy.experimental_distribute_dataset(dataset()):
            step(x)

    with watch(2, eager=True) as code:
        program()
    report = verify(place(code))

    reasons = {
        verdict.rule: verdict.reason
        for verdict in report.verdicts
        if "inside a loop" in (verdict.reason or "")
    }
    assert set(reasons) >= {
        "towers-alike",
        "losses-apart",
        "gradients-colocated",
        "every-tower-counts",
        "trainables-trained",
    }
    assert report.evidence.program
    assert set(reasons.values()) == {report.evidence.program.gradients_inside}


def test_gradients_inside_a_branch_get_a_remark() -> None:
    def program() -> None:
        w = weights()

        def gradient(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(w, x)
            return tape.gradient(loss, w)

        @tf.function
        def step(x: Any) -> None:
            w.assign_sub(tf.cond(x[0, 0] > 0, lambda: gradient(x), lambda: tf.zeros_like(w)))

        step(rows())

    inside = watched(program).gradients_inside
    assert re.match(r"step takes all its gradients inside one op, \w+ \(\w*If\), at ", inside)


def test_gradients_inside_a_loop_are_not_the_steps() -> None:
    """Such as the gradients that make an example adversarial."""

    def program() -> None:
        w = weights()

        @tf.function
        def step(x: Any) -> None:
            for _ in tf.range(3):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    loss = loss_of(w, x)
                x += tape.gradient(loss, x)
            updates(w, x)

        step(rows())

    built = watched(program)
    assert built.requested.step.objectives
    assert built.gradients_inside == ""


def test_slots_that_tracing_creates_are_variables() -> None:
    def program() -> None:
        with tf.device("/gpu:1"):
            w = weights()
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

        @tf.function
        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(w, x)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        step(rows())

    built = watched(program)

    of_this_shape = [each.name for each in built.requested.variables if each.shape == (3, 1)]
    assert len(of_this_shape) == 2
    assert "If" not in types(built)
    assert [applied.variable for applied in built.applied] == ["w"]


def test_variables_of_one_name_are_numbered_with_their_copies() -> None:
    def program() -> None:
        strategy = mirrored()
        with strategy.scope():
            first, second = weights(), weights()

        def replica(x: Any) -> None:
            for w in (first, second):
                with tf.GradientTape() as tape:
                    loss = loss_of(w, x)
                context = tf.distribute.get_replica_context()
                w.assign_sub(context.all_reduce("sum", tape.gradient(loss, w)))

        @tf.function
        def step(x: Any) -> None:
            strategy.run(replica, args=(x,))

        step(rows())

    built = watched(program)

    assert names(built) == {"w", "w/replica_1", "w_1", "w_1/replica_1"}
    assert built.initial.mirrors == {"w/replica_1": "w", "w_1/replica_1": "w_1"}


def test_the_learning_rate_before_the_step_is_known() -> None:
    """The optimizer changes the counter, but not the rate."""
    optimizer = tf.keras.optimizers.SGD(0.5)

    def program() -> None:
        w = weights()
        optimizer.build([w])
        optimizer.learning_rate = 0.25

        @tf.function
        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(w, x)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        step(rows())

    assert [*watched(program).requested.step.constants.values()] == [0.25]


def test_a_variable_without_request_is_on_the_first_gpu() -> None:
    """If the dtype has a GPU kernel, as on a machine with GPUs."""

    def program() -> None:
        w, counter = weights(), tf.Variable(0, dtype=tf.int32, name="counter")
        text = tf.Variable("text", name="text")

        @tf.function
        def step(x: Any) -> Any:
            counter.assign_add(1)
            text.assign("other")
            return updates(w, x)

        step(rows())

    assert devices(watched(program), ["w", "counter", "text"]) == [
        "/device:GPU:0",
        "/device:CPU:0",
        "/device:CPU:0",
    ]


def test_a_sparse_gradient_has_its_rows() -> None:
    def program() -> None:
        w = weights()
        optimizer = tf.keras.optimizers.SGD(0.1)

        @tf.function
        def step(numbers: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(w, numbers))
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        step(tf.constant([0, 2]))

    (applied,) = watched(program).applied

    assert applied.gradient is not None
    assert applied.gradient.indices


def test_the_lines_of_ops_and_variables() -> None:
    built = watched(towers)

    details = built.requested.details
    update = next(
        name for name, op in built.requested.ops.items() if op.type == "AssignSubVariableOp"
    )
    (line,) = [frame.function for frame in details.frames(update)[-1:]]
    assert line == "step"
    assert details.frames("w")[-1].function == "weights"
    backward = next(
        name for name, op in built.requested.ops.items() if op.type == "MatMul" and "tape" in name
    )
    assert details.forward_op(backward) in {"MatMul", "MatMul_1"}
