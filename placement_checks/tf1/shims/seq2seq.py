"""Decoders of ``tf.contrib.seq2seq``, and the helpers that choose their next inputs."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

tf1 = tf.compat.v1


class Helper:
    """Chooses the inputs of a decoder, and samples classes from its outputs."""

    sample_ids_shape = tf.TensorShape([])
    sample_ids_dtype = tf.int32

    @property
    def batch_size(self) -> Any:
        """The number of sequences."""
        raise NotImplementedError

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Return which sequences are finished, and the first inputs."""
        raise NotImplementedError

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Sample a class for each sequence from the outputs."""
        raise NotImplementedError

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """Return which sequences are finished after a step, the next inputs, and the state."""
        raise NotImplementedError


class TrainingHelper(Helper):
    """Reads given sequences, as in training."""

    def __init__(
        self, inputs: Any, sequence_length: Any, time_major: bool = False, name: str | None = None
    ) -> None:
        with tf1.name_scope(name, "TrainingHelper", [inputs, sequence_length]):
            self.inputs = inputs
            self.sequence_length = tf.convert_to_tensor(sequence_length)
            by_time = inputs if time_major else tf.nest.map_structure(swap_batch_and_time, inputs)
            self._inputs = tf.nest.map_structure(_array_of, by_time)
            self._after_the_end = tf.nest.map_structure(lambda x: tf.zeros_like(x[0]), by_time)

    @property
    def batch_size(self) -> Any:
        return tf.size(self.sequence_length)

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        with tf1.name_scope(name, "TrainingHelperInitialize"):
            return self._at(tf.constant(0))

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        with tf1.name_scope(name, "TrainingHelperSample", [time, outputs, state]):
            return tf.argmax(outputs, -1, tf.int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        with tf1.name_scope(name, "TrainingHelperNextInputs", [time, outputs, sample_ids]):
            return (*self._at(time + 1), state)

    def _at(self, time: Any) -> tuple[Any, Any]:
        finished = time >= tf.cast(self.sequence_length, time.dtype)
        inputs = tf1.cond(
            tf.reduce_all(finished),
            lambda: self._after_the_end,
            lambda: tf.nest.map_structure(lambda array: array.read(time), self._inputs),
        )
        return finished, inputs


class GreedyEmbeddingHelper(Helper):
    """Reads the most likely class of the last output, until this class is the end token."""

    def __init__(self, embedding: Any, start_tokens: Any, end_token: Any) -> None:
        self._embedding = embedding
        self._start = tf.convert_to_tensor(start_tokens, tf.int32)
        self._end = tf.convert_to_tensor(end_token, tf.int32)
        self._start_inputs = self._embedded(self._start)

    @property
    def batch_size(self) -> Any:
        return tf.size(self._start)

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        with tf1.name_scope(name, "EmbeddingHelperInitialize"):
            return tf.fill([self.batch_size], False), self._start_inputs

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        with tf1.name_scope(name, "EmbeddingHelperSample", [time, outputs, state]):
            return tf.argmax(outputs, -1, tf.int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        with tf1.name_scope(name, "EmbeddingHelperNextInputs", [time, outputs, sample_ids]):
            finished = tf.equal(sample_ids, self._end)
            inputs = tf1.cond(
                tf.reduce_all(finished),
                lambda: self._start_inputs,
                lambda: self._embedded(sample_ids),
            )
            return finished, inputs, state

    def _embedded(self, ids: Any) -> Any:
        if callable(self._embedding):
            return self._embedding(ids)
        return tf1.nn.embedding_lookup(self._embedding, ids)


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Reads a class that is sampled from the distribution of the last output."""

    def __init__(
        self,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding, start_tokens, end_token)
        self._temperature = softmax_temperature
        self._seed = seed

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        with tf1.name_scope(name, "EmbeddingHelperSample", [time, outputs, state]):
            logits = outputs if self._temperature is None else outputs / self._temperature
            ids = tf.random.categorical(logits, 1, tf.int32, self._seed)
            return tf.squeeze(ids, 1)


def swap_batch_and_time(tensor: Any) -> Any:
    """Swap the first two axes of a tensor."""
    order = tf.concat([[1, 0], tf.range(2, tf.rank(tensor))], 0)
    swapped = tf.transpose(tensor, order)
    static = tensor.shape.as_list()
    swapped.set_shape([static[1], static[0], *static[2:]])
    return swapped


def _array_of(tensor: Any) -> Any:
    array = tf.TensorArray(tensor.dtype, tf.shape(tensor)[0], element_shape=tensor.shape[1:])
    return array.unstack(tensor)


class Decoder:
    """A decoder; `dynamic_decode` repeats its steps."""

    batch_size: Any
    output_size: Any
    output_dtype: Any
    tracks_own_finished = False

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Return which sequences are finished, the first inputs, and the first state."""
        raise NotImplementedError

    def step(
        self, time: Any, inputs: Any, state: Any, name: str | None = None
    ) -> tuple[Any, Any, Any, Any]:
        """Return the outputs, the next state and inputs, and which sequences are finished."""
        raise NotImplementedError

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """Convert all outputs and the final state at the end."""
        raise NotImplementedError


class BasicDecoderOutput(NamedTuple):
    """The output of a cell, and the class sampled from it."""

    rnn_output: Any
    sample_id: Any


class BasicDecoder(Decoder):
    """A cell with a helper, and optionally a layer on its outputs."""

    def __init__(
        self, cell: Any, helper: Helper, initial_state: Any, output_layer: Any = None
    ) -> None:
        self._cell = cell
        self._helper = helper
        self._initial_state = initial_state
        self._output_layer = output_layer

    @property
    def batch_size(self) -> Any:
        return self._helper.batch_size

    @property
    def output_size(self) -> BasicDecoderOutput:
        size = tf.TensorShape(self._cell.output_size)
        if self._output_layer is not None:
            size = self._output_layer.compute_output_shape(
                tf.TensorShape([None]).concatenate(size)
            )[1:]
        return BasicDecoderOutput(size, self._helper.sample_ids_shape)

    @property
    def output_dtype(self) -> BasicDecoderOutput:
        dtype = tf.nest.flatten(self._initial_state)[0].dtype
        return BasicDecoderOutput(dtype, self._helper.sample_ids_dtype)

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        return (*self._helper.initialize(name), self._initial_state)

    def step(
        self, time: Any, inputs: Any, state: Any, name: str | None = None
    ) -> tuple[Any, Any, Any, Any]:
        with tf1.name_scope(name, "BasicDecoderStep", [time, inputs, state]):
            outputs, state = self._cell(inputs, state)
            if self._output_layer is not None:
                outputs = self._output_layer(outputs)
            ids = self._helper.sample(time=time, outputs=outputs, state=state)
            finished, inputs, state = self._helper.next_inputs(
                time=time, outputs=outputs, state=state, sample_ids=ids
            )
        return BasicDecoderOutput(outputs, ids), state, inputs, finished


def dynamic_decode(
    decoder: Decoder,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: Any = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """Repeat the steps of a decoder until all sequences are finished.

    Args:
        decoder: the decoder.
        output_time_major: whether the first axis of outputs is time; else it is the batch.
        impute_finished: whether finished sequences have zero outputs and keep their state.
        maximum_iterations: the maximum number of steps; None for no limit.
        parallel_iterations: as in `tf.while_loop`.
        swap_memory: as in `tf.while_loop`.
        scope: the variable scope.

    Returns:
        All outputs, the last state, and the lengths of the sequences.
    """
    with tf1.variable_scope(scope, "decoder") as variables:
        if variables.caching_device is None:
            variables.set_caching_device(lambda op: op.device)  # read once, not per step
        loop = _Loop(decoder, impute_finished, maximum_iterations)
        _, arrays, state, _, _, lengths = tf1.while_loop(
            lambda *values: tf.logical_not(tf.reduce_all(values[4])),
            loop.step,
            loop.begin(),
            parallel_iterations=parallel_iterations,
            swap_memory=swap_memory,
        )
        outputs = tf.nest.map_structure(lambda array: array.stack(), arrays)
        with contextlib.suppress(NotImplementedError):  # most decoders do not implement it
            outputs, state = decoder.finalize(outputs, state, lengths)
        if not output_time_major:
            outputs = tf.nest.map_structure(swap_batch_and_time, outputs)
    return outputs, state, lengths


class _Loop:
    """The loop of `dynamic_decode`.

    Its values are the time, the outputs, the state, the inputs, which sequences are finished, and
    their lengths.
    """

    def __init__(self, decoder: Decoder, impute: bool, max_steps: Any) -> None:
        self._decoder = decoder
        self._impute = impute
        self._max_steps = max_steps

    def begin(self) -> tuple[Any, ...]:
        finished, inputs, state = self._decoder.initialize()
        if self._max_steps is not None:
            finished = tf.logical_or(finished, self._max_steps <= 0)
        arrays = tf.nest.map_structure(self._array, *self._outputs())
        return (tf.constant(0), arrays, state, inputs, finished, tf.zeros_like(finished, tf.int32))

    def step(
        self, time: Any, arrays: Any, state: Any, inputs: Any, finished: Any, lengths: Any
    ) -> tuple[Any, ...]:
        outputs, new_state, inputs, now = self._decoder.step(time, inputs, state)
        if not self._decoder.tracks_own_finished:
            now = tf.logical_or(now, finished)
        if self._max_steps is not None:
            now = tf.logical_or(now, time + 1 >= self._max_steps)
        lengths = tf1.where(finished, lengths, tf.fill(tf.shape(lengths), time + 1))
        if self._impute:
            zeros = tf.nest.map_structure(tf.zeros_like, outputs)
            outputs = _where(finished, zeros, outputs)
            new_state = _where(finished, state, new_state)
        arrays = tf.nest.map_structure(lambda array, x: array.write(time, x), arrays, outputs)
        return (time + 1, arrays, new_state, inputs, now, lengths)

    def _outputs(self) -> tuple[Any, Any]:
        return self._decoder.output_dtype, tf.nest.map_structure(
            tf.TensorShape, self._decoder.output_size
        )

    def _array(self, dtype: Any, size: Any) -> Any:
        batch = tf.get_static_value(self._decoder.batch_size)
        return tf.TensorArray(
            dtype, 0, dynamic_size=True, element_shape=tf.TensorShape([batch]).concatenate(size)
        )


def _where(condition: Any, values: Any, others: Any) -> Any:
    """Select row by row; values without rows, such as a step counter, come from ``others``."""

    def select(value: Any, other: Any) -> Any:
        if isinstance(value, tf.TensorArray) or value.shape.rank == 0:
            return other
        selected = tf1.where(condition, value, other)
        selected.set_shape(other.shape)
        return selected

    return tf.nest.map_structure(select, values, others)


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Repeat each row ``multiplier`` times, in a tensor or a structure of tensors."""

    def tile(tensor: Any) -> Any:
        tiled = tf.repeat(tensor, multiplier, 0)
        rows = tensor.shape[0] if isinstance(tensor.shape[0], int) else tensor.shape[0].value
        tiled.set_shape([rows and rows * multiplier, *tensor.shape.as_list()[1:]])
        return tiled

    with tf1.name_scope(name, "tile_batch", [t, multiplier]):
        return tf.nest.map_structure(tile, t)
