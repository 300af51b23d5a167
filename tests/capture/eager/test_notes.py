"""Records of traced functions: variables, forward ops, reductions over replicas."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.eager_programs import loss_of, rows, updates, watched, weights

from placement_checks.capture.eager.notes import record_tracing
from placement_checks.capture.eager.reading import next_elements
from placement_checks.core.strategies import Copy
from placement_checks.tf.simulated_devices import configure_logical_cpus

GPUS = ["/gpu:0", "/gpu:1"]


@pytest.fixture(autouse=True)
def devices() -> None:
    configure_logical_cpus(3)


def test_nothing_is_recorded_in_graphs() -> None:
    before = tf.Graph.device, tf.Variable.__init__

    with record_tracing(eager=False) as tracing:
        weights()
        assert (tf.Graph.device, tf.Variable.__init__) == before

    assert not list(tracing.variables.all())


def test_tensorflow_is_restored() -> None:
    before = tf.Graph.device

    with record_tracing(eager=True) as tracing:
        weights()
        assert tf.Graph.device is not before

    assert tf.Graph.device is before
    (noted,) = tracing.variables.all()
    weights()
    assert len(list(tracing.variables.all())) == 1
    assert "weights" in {frame.name for frame in noted.stack}
    assert not noted.orders_collectives


def test_ops_of_a_function_have_user_lines() -> None:
    """AutoGraph writes the converted function to a new file, which it deletes at the end."""

    class Layer(tf.Module):
        made: tf.Variable | None = None

        @tf.function
        def __call__(self, x: Any) -> Any:
            if self.made is None:
                self.made = tf.Variable(1.0)
            return x * self.made

    with record_tracing(eager=True) as tracing:
        Layer()(tf.constant(2.0))

    (noted,) = tracing.variables.all()
    files = {frame.filename for frame in noted.stack}
    assert __file__ in files
    assert not any("autograph_generated" in file for file in files)


def test_ops_of_replicas_have_user_lines() -> None:
    """A thread for each replica runs code that AutoGraph converted with the enclosing function."""

    @tf.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            if x.shape.rank == 0:
                x = tf.stack([tf.negative(each) for each in (x, x)])
            return x

        return tf.distribute.get_strategy().run(replica, args=(x,))

    with record_tracing(eager=True), tf.distribute.MirroredStrategy(GPUS).scope():
        graph = step.get_concrete_function(tf.constant(2.0)).graph

    negatives = [op for op in graph.get_operations() if op.type == "Neg"]
    assert len(negatives) == 4
    for op in negatives:
        files = {frame.filename for frame in op.traceback}
        assert __file__ in files
        assert not any("autograph_generated" in file for file in files)


def test_copies_know_their_variable_and_tokens_have_none() -> None:
    with record_tracing(eager=True) as tracing:
        strategy = tf.distribute.MirroredStrategy(GPUS)
        with strategy.scope():
            whole = weights()

    tokens = [each for each in tracing.variables.all() if each.orders_collectives]
    noted = [each for each in tracing.variables.all() if not each.orders_collectives]
    assert len(tokens) == 2  # one for each device
    assert [each.part_of is whole for each in noted] == [True, True]
    assert [each.replica for each in noted] == [0, 1]
    assert [each.device[-5:] for each in noted] == ["CPU:1", "CPU:2"]


def test_the_forward_op_of_each_backward_op() -> None:
    with record_tracing(eager=True) as tracing:
        w = weights()

        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.relu(tf.matmul(x, w)))
            return tape.gradient(loss, w)

        graph = step.get_concrete_function(rows()).graph

    found = tracing.forward.in_graph(graph)
    by_type = {
        graph.get_operation_by_name(backward).type: graph.get_operation_by_name(name).type
        for backward, name in found.items()
    }
    assert by_type["ReluGrad"] == "Relu"
    assert by_type["MatMul"] == "MatMul"
    assert "Relu" not in found


def test_values_computed_from_replicas() -> None:
    made: list[Any] = []

    with record_tracing(eager=True) as tracing:
        strategy = tf.distribute.MirroredStrategy(GPUS, tf.distribute.ReductionToOneDevice())

        def replica(x: Any) -> Any:
            value = tf.reduce_sum(x)
            total = tf.distribute.get_replica_context().all_reduce("sum", value)
            made.append((value, total))
            return total

        @tf.function(autograph=False)
        def step(x: Any) -> None:
            strategy.run(replica, args=(x,))

        step.get_concrete_function(rows())

    assert len(made) == 2
    for value, total in made:
        result = tracing.reductions.result(value)
        assert result is not value
        assert any(result is source for source in total.op.inputs)
        assert tracing.reductions.result(total) is total


def test_copies_of_a_strategy_and_variables_outside_it() -> None:
    def program() -> None:
        plain = weights("plain")
        strategy = tf.distribute.MirroredStrategy(GPUS)
        with strategy.scope():
            w = weights()
            statistic = tf.Variable(
                0.0,
                name="statistic",
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

        def replica(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(w + plain, x)
            context = tf.distribute.get_replica_context()
            w.assign_sub(context.all_reduce("sum", tape.gradient(loss, w)))
            statistic.assign_add(1.0)

        @tf.function
        def step(x: Any) -> None:
            strategy.run(replica, args=(x,))

        step(rows())

    strategy = watched(program).requested.strategy

    assert strategy is not None
    assert list(map(str, strategy.replicas)) == ["/device:GPU:0", "/device:GPU:1"]
    assert strategy.outside == ["plain"]
    assert strategy.copies == {
        "w": Copy("w", 0),
        "w/replica_1": Copy("w", 1),
        "statistic": Copy("statistic", 0, in_sync=False),
        "statistic/replica_1": Copy("statistic", 1, in_sync=False),
    }


def reads(iterator: Any) -> tuple[Any, Any]:
    """The graph of a function that reads an iterator, and its arguments by name."""

    @tf.function
    def step(source: Any) -> Any:
        x, y = next(source)
        return x + tf.cast(y, tf.float32)

    graph = step.get_concrete_function(iterator).graph
    resource = tf.nest.flatten(iterator, expand_composites=True)[0]
    return graph.as_graph_def(), {graph.inputs[0].op.name: resource}


def test_the_step_reads_the_next_element_of_an_iterator() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(([1.0, 2.0], [3, 4]))
    iterator = iter(dataset)
    graph_def, arguments = reads(iterator)

    found = [next_elements(graph_def, arguments) for _ in range(3)]

    assert [sorted(each.values()) for each in found] == [[1.0, 3], [2.0, 4], []]
    assert {name.rpartition(":")[2] for name in found[0]} == {"0", "1"}


def test_an_iterator_outside_the_arguments_is_not_read() -> None:
    graph_def, _ = reads(iter(tf.data.Dataset.from_tensor_slices(([1.0], [3]))))

    assert next_elements(graph_def, {}) == {}


def test_a_step_of_a_strategy_reads_one_iterator_for_each_replica() -> None:
    def program() -> None:
        strategy = tf.distribute.MirroredStrategy(GPUS)
        with strategy.scope():
            w = weights()
        dataset = tf.data.Dataset.from_tensor_slices(rows(16)).batch(8, drop_remainder=True)
        iterator = iter(strategy.experimental_distribute_dataset(dataset))

        @tf.function
        def step(source: Any) -> None:
            strategy.run(lambda x: updates_together(w, x), args=(next(source),))

        step(iterator)

    def updates_together(w: Any, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, x)
        context = tf.distribute.get_replica_context()
        w.assign_sub(context.all_reduce("sum", tape.gradient(loss, w)))

    fed = watched(program).fed

    arrays = [array for array in fed.values() if getattr(array, "shape", ()) == (4, 3)]
    assert len(arrays) == 2
    assert (arrays[0] != arrays[1]).all()


def test_a_plain_step_reads_nothing_else() -> None:
    def program() -> None:
        w = weights()
        tf.function(lambda x: updates(w, x))(rows())

    assert [array.shape for array in watched(program).fed.values()] == [(8, 3)]
