"""Small programs for two GPUs, to compare predicted placements with a machine.

Programs for sessions build a graph and return its fetches; they need no feeds. Eager programs
train for two steps, and may return facts that no placement log has. Each program covers one
subject, so that a difference is attributed to this subject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from placement_checks.graph.graph_def import all_nodes
from placement_checks.tf.simulated_devices import to_simulated

tf1 = tf.compat.v1

GPUS = 2
_HINT = "communication_hint"  # attribute of collectives
_ROWS, _FEATURES = 8, 4
# These aliases have types, because TensorFlow's decorators have none.
_function: Callable[[Callable[..., Any]], Any] = tf.function
_compiled: Callable[[Callable[..., Any]], Any] = tf.function(jit_compile=True)
# The dtypes of variables; only some of them have kernels on a GPU.
_DTYPES = (tf.float32, tf.float16, tf.int32, tf.int64, tf.bool)

Build = Callable[[], Any]


@dataclass(frozen=True)
class Program:
    """A program for two GPUs.

    Attributes:
        name: the name of its function in this module.
        run: the function.
        kind: ``graph`` if it builds a graph for a session, ``eager`` if it trains.
        soft: whether soft placement is on in its session; eager programs keep the default.
        physical: how many physical GPUs it needs; logical GPUs cannot replace them.
        is_predicted: whether its placement is predicted.
        on_cpus: whether CPU devices can replace the GPUs.
    """

    name: str
    run: Build
    kind: Literal["graph", "eager"]
    soft: bool = True
    physical: int = 1
    is_predicted: bool = True
    on_cpus: bool = True


PROGRAMS: dict[str, Program] = {}


def import_on_cpus(graph_def: Any) -> tf.Graph:
    """Import a GraphDef with ``CPU:i+1`` for ``GPU:i``; the GraphDef is not changed."""
    copied = type(graph_def)()
    copied.CopyFrom(graph_def)
    for node in all_nodes(copied):
        node.device = to_simulated(node.device)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(copied, name="")
    return graph


def _program(kind: Literal["graph", "eager"], **settings: Any) -> Callable[[Build], Build]:
    def add(run: Build) -> Build:
        name = run.__name__
        PROGRAMS[name] = Program(name, run, kind, **settings)
        return run

    return add


@_program("graph", soft=False)
def towers() -> Any:
    """Variables on the CPU, a tower on each GPU, and averaged gradients."""
    return _towers(tf1.train.AdamOptimizer(0.1), use_resource=True)


@_program("graph", soft=False)
def towers_of_ref_variables() -> Any:
    """Two towers with ref variables, which constrain the placement more."""
    return _towers(tf1.train.MomentumOptimizer(0.1, 0.9), use_resource=False)


@_program("graph", soft=False)
def mirrored_copies() -> Any:
    """A copy of each variable on each GPU, updated with the sum of all gradients."""
    weights, gradients = [], []
    for gpu in range(GPUS):
        with tf.device(f"/gpu:{gpu}"), tf1.variable_scope(f"copy_{gpu}"):
            weights.append(_weights("w"))
            loss = tf.reduce_mean(tf.square(_rows(gpu) @ weights[-1]))
            gradients += tf1.gradients(loss, [weights[-1]])
    updates = []
    for gpu, weight in enumerate(weights):
        with tf.device(f"/gpu:{gpu}"):
            total = tf.add_n(gradients)
            updates.append(tf1.assign_sub(weight, 0.1 * total))
    return tf.group(updates)


@_program("graph")
def convolutions() -> Any:
    """Convolutions, batch normalization and dropout; TensorFlow rewrites their ops."""
    losses = []
    for gpu in range(GPUS):
        with tf.device(f"/gpu:{gpu}"), tf1.variable_scope(f"tower_{gpu}"):
            images = tf.random.stateless_normal([4, 8, 8, 3], [gpu, 0])
            filters = tf1.get_variable("filters", [3, 3, 3, 8])
            scale = tf1.get_variable("scale", [8], initializer=tf1.ones_initializer())
            offset = tf1.get_variable("offset", [8], initializer=tf1.zeros_initializer())
            features = tf.nn.conv2d(images, filters, 1, "SAME")
            features, _, _ = tf1.nn.fused_batch_norm(features, scale, offset)
            features = tf.nn.max_pool2d(tf.nn.relu(features), 2, 2, "SAME")
            losses.append(tf.reduce_mean(tf.nn.dropout(features, 0.5, seed=1)))
    return _minimize(tf.add_n(losses))


@_program("graph")
def embeddings() -> Any:
    """A table with sparse gradients, on a GPU."""
    with tf.device("/gpu:1"):
        table = tf1.get_variable("table", [30, _FEATURES])
        rows = tf.nn.embedding_lookup(table, tf.constant([1, 2, 2, 7]))
        return _minimize(tf.reduce_sum(rows))


@_program("graph")
def loops_of_version_1() -> Any:
    """A loop and a branch of TensorFlow 1, with gradients through the loop."""
    tf1.disable_control_flow_v2()
    try:
        return _loop_and_branch()
    finally:
        tf1.enable_control_flow_v2()


@_program("graph")
def loops_of_version_2() -> Any:
    """A loop and a branch as functions, which TensorFlow lowers before placement."""
    return _loop_and_branch()


@_program("graph")
def unpinned() -> Any:
    """A model without requested devices."""
    return _minimize(tf.reduce_mean(tf.square(_rows(0) @ _weights("w"))))


@_program("graph")
def integers() -> Any:
    """Integer variables and arithmetic on a GPU, which has few kernels for them."""
    with tf.device("/gpu:1"):
        found = []
        for dtype in (tf.int32, tf.int64):
            for use_resource in (True, False):
                name = f"{dtype.name}_{'resource' if use_resource else 'ref'}"
                zero = tf1.zeros_initializer()
                step = tf1.get_variable(name, [], dtype, zero, use_resource=use_resource)
                found += [tf1.assign_add(step, 1), tf.range(tf.cast(step, tf.int32) + 3)]
        return found


@_program("graph")
def strings() -> Any:
    """Strings, a table and a queue on a GPU, which has no kernels for them."""
    with tf.device("/gpu:0"):
        queue = tf1.FIFOQueue(4, [tf.string], shapes=[[]])
        enqueue = queue.enqueue(tf.strings.join([tf.constant("a"), ""]))
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a"], [1]), default_value=0
        )
        with tf.control_dependencies([enqueue]):
            return table.lookup(queue.dequeue())


@_program("graph")
def ops_without_kernels() -> Any:
    """Ops that no GPU runs: images, summaries, Python functions, sets."""
    with tf.device("/gpu:1"):
        image = tf.io.decode_png(tf.io.encode_png(tf.zeros([4, 4, 3], tf.uint8)))
        resized = tf.image.resize(tf.cast(image, tf.float32), [8, 8])
        summary = tf1.summary.scalar("mean", tf.reduce_mean(resized))
        doubled = tf.numpy_function(lambda x: 2 * x, [tf.ones([2])], tf.float32)
        unique = tf.unique_with_counts(tf.constant([1, 1, 2]))
        return summary, doubled, unique


@_program("graph")
def input_pipelines() -> Any:
    """A dataset with an iterator on the CPU, and its elements on a GPU."""
    with tf.device("/cpu:0"):
        data = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float32)).batch(2)
        iterator = tf1.data.make_initializable_iterator(data)
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    with tf.device("/gpu:1"):
        return iterator.get_next() + 1


@_program("graph")
def savers() -> Any:
    """Ops that save and restore variables of both GPUs."""
    for gpu in range(GPUS):
        with tf.device(f"/gpu:{gpu}"):
            _weights(f"w_{gpu}")
    tf1.train.Saver()
    return tf1.global_variables()


@_program("graph")
def colocations() -> Any:
    """Ops that are colocated with ops of another device."""
    with tf.device("/gpu:1"):
        x = tf1.get_variable("x", [_FEATURES])
    with tf1.colocate_with(x.op):
        y = x + 1
    with tf.device("/gpu:0"), tf1.colocate_with(x.op):
        return y * 2


@_program("graph", soft=False)
def layers_on_two_gpus() -> Any:
    """A model with a layer on each GPU."""
    with tf.device("/gpu:0"):
        first = tf1.get_variable("first", [_FEATURES, _FEATURES])
        features = tf.tanh(_rows(0) @ first)
    with tf.device("/gpu:1"):
        loss = tf.reduce_mean(tf.square(features @ _weights("second")))
    return _minimize(loss)


@_program("graph")
def half_precision() -> Any:
    """A tower in half precision with float32 variables, and the scaling of its loss."""
    with tf.device("/gpu:0"):
        w = _weights("w")
        x = tf.cast(_rows(0), tf.float16)
        loss = 128 * tf.reduce_mean(tf.square(x @ tf.cast(w, tf.float16)))
        (gradient,) = tf1.gradients(loss, [w])
        finite = tf.reduce_all(tf.math.is_finite(gradient))
        return tf1.assign_sub(w, tf.where(finite, gradient / 128, tf.zeros_like(gradient)))


@_program("graph", soft=False)
def refused() -> Any:
    """An op without a GPU kernel under strict placement, which the placer refuses."""
    with tf.device("/gpu:0"):
        return tf.strings.join([tf.constant("a"), "b"], name="no_kernel")


@_program("eager")
def functions() -> None:
    """A traced step that calls another traced function for each GPU."""
    with tf.device("/cpu:0"):
        w = tf.Variable(tf.ones([_FEATURES, 1]), name="w")

    @_function
    def loss_of(rows: Any) -> Any:
        return tf.reduce_mean(tf.square(rows @ w))

    @_function
    def step(rows: Any) -> None:
        gradients = []
        for gpu in range(GPUS):
            with tf.device(f"/gpu:{gpu}"), tf.GradientTape() as tape:
                loss = loss_of(rows[gpu::GPUS])
            gradients.append(tape.gradient(loss, w))
        with tf.device("/cpu:0"):
            w.assign_sub(0.1 * tf.add_n(gradients))

    _train(step)


@_program("eager")
def control_flow_in_functions() -> None:
    """A traced step with a loop and a branch."""
    with tf.device("/gpu:1"):
        w = tf.Variable(tf.eye(_FEATURES), name="w")

    @_function
    def step(rows: Any) -> None:
        with tf.device("/gpu:1"), tf.GradientTape() as tape:
            features = rows
            for _ in tf.range(3):
                features = tf.tanh(features @ w)
            loss = tf.reduce_mean(features)
            loss = tf.cond(loss > 0, lambda: loss, lambda: -loss)
        w.assign_sub(0.1 * tape.gradient(loss, w))

    _train(step)


@_program("eager", on_cpus=False)  # the eager runtime prefers a GPU
def variables_without_devices() -> Mapping[str, Any]:
    """Variables of several dtypes for which the program requests no device."""
    variables = [tf.Variable(tf.ones([2], dtype), name=dtype.name) for dtype in _DTYPES]
    w = variables[0]

    @_function
    def step(rows: Any) -> None:
        del rows
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        for variable in variables[1:]:
            variable.assign(variable)

    _train(step)
    return {"variables": {each.name.partition(":")[0]: each.device for each in variables}}


@_program("eager")
def compiled_by_xla() -> None:
    """A traced step that calls a function compiled by XLA on each GPU."""
    with tf.device("/cpu:0"):
        w = tf.Variable(tf.ones([_FEATURES, 1]), name="w")

    @_compiled
    def gradient_of(rows: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_mean(tf.square(rows @ weights))
        return tape.gradient(loss, weights)

    @_function
    def step(rows: Any) -> None:
        gradients = []
        for gpu in range(GPUS):
            with tf.device(f"/gpu:{gpu}"):
                gradients.append(gradient_of(rows[gpu::GPUS], w.read_value()))
        with tf.device("/cpu:0"):
            w.assign_sub(0.1 * tf.add_n(gradients))

    _train(step)


@_program("eager")
def mirrored_strategy() -> Mapping[str, Any]:
    """A training loop under MirroredStrategy, with its default way to sum gradients."""
    return _under(tf.distribute.MirroredStrategy(_gpu_names()))


@_program("eager", physical=GPUS)
def mirrored_strategy_with_nccl() -> Mapping[str, Any]:
    """A training loop under MirroredStrategy, with NcclAllReduce."""
    sums = tf.distribute.NcclAllReduce()
    return _under(tf.distribute.MirroredStrategy(_gpu_names(), cross_device_ops=sums))


@_program("eager")
def keras_fit() -> None:
    """Keras and `fit` under MirroredStrategy."""
    with tf.distribute.MirroredStrategy(_gpu_names()).scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(4, activation="relu"),
                tf.keras.layers.BatchNormalization(),
                tf.keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    rows = tf.ones([2 * _ROWS, _FEATURES])
    model.fit(rows, tf.ones([2 * _ROWS, 1]), batch_size=_ROWS, verbose=0)


@_program("eager", physical=GPUS, is_predicted=False)
def sums_of_nccl() -> Mapping[str, Any]:
    """The largest error of a sum by NCCL, in units in the last place of the exact sum."""
    strategy = tf.distribute.MirroredStrategy(
        _gpu_names(), cross_device_ops=tf.distribute.NcclAllReduce()
    )
    parts = [tf.random.stateless_normal([1 << 16], [gpu, 1]) for gpu in range(GPUS)]

    @_function
    def summed() -> Any:
        def own() -> Any:
            context = tf.distribute.get_replica_context()
            part = tf.gather(parts, context.replica_id_in_sync_group)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, part)

        return strategy.run(own)

    exact = sum(part.numpy().astype(np.float64) for part in parts)
    unit = np.spacing(np.abs(exact).astype(np.float32))
    found = strategy.experimental_local_results(summed())
    return {"units": max(float(np.max(abs(each.numpy() - exact) / unit)) for each in found)}


def _gpu_names() -> list[str]:
    return [f"/gpu:{gpu}" for gpu in range(GPUS)]


def _rows(seed: int) -> Any:
    return tf.random.stateless_normal([_ROWS, _FEATURES], [seed, 0])


def _weights(name: str) -> Any:
    return tf1.get_variable(name, [_FEATURES, 1], initializer=tf1.ones_initializer())


def _minimize(loss: Any) -> Any:
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss)


def _towers(optimizer: Any, *, use_resource: bool) -> Any:
    with tf.device("/cpu:0"):
        ones = tf1.ones_initializer()
        w = tf1.get_variable("w", [_FEATURES, 1], initializer=ones, use_resource=use_resource)
    gradients = []
    for gpu in range(GPUS):
        with tf.device(f"/gpu:{gpu}"), tf1.name_scope(f"tower_{gpu}"):
            loss = tf.reduce_mean(tf.square(_rows(gpu) @ w))
            gradients += tf1.gradients(loss, [w])
    with tf.device("/cpu:0"):
        return optimizer.apply_gradients([(tf.add_n(gradients) / GPUS, w)])


def _loop_and_branch() -> Any:
    with tf.device("/gpu:0"):
        w = tf1.get_variable("w", [_FEATURES, _FEATURES])
    with tf.device("/gpu:1"):
        start = [tf.constant(0), _rows(0)]
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(s @ w)), start)
        total = tf.reduce_sum(y)
        loss = tf.cond(total > 0, lambda: total, lambda: -total)
        return _minimize(loss)


def _train(step: Callable[[Any], Any]) -> None:
    rows = tf.ones([_ROWS, _FEATURES])
    for _ in range(2):
        step(rows)


def _under(strategy: Any) -> Mapping[str, Any]:
    """Train under a strategy; returns the hints of its collectives."""
    with strategy.scope():
        w = tf.Variable(tf.ones([_FEATURES, 1]), name="w")
        b = tf.Variable(tf.zeros([1]), name="b")

    def replica(rows: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(rows @ w + b))
        gradients = tape.gradient(loss, [w, b])
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for variable, gradient in zip((w, b), gradients, strict=True):
            variable.assign_sub(0.1 * gradient)

    @_function
    def step(rows: Any) -> None:
        strategy.run(replica, args=(rows,))

    _train(step)
    traced = step.get_concrete_function(tf.ones([_ROWS, _FEATURES]))
    nodes = all_nodes(traced.graph.as_graph_def())
    hints = {node.attr[_HINT].s.decode() for node in nodes if _HINT in node.attr}
    return {"hints": sorted(hints)}
