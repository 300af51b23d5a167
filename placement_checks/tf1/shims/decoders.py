"""Decoders of ``tf.contrib.seq2seq``: a cell that goes on until all sequences are finished."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.tf1.shims.decoding_helpers import Helper, time_first

tf1 = tf.compat.v1


class Decoder:
    """One step of a decoder; `dynamic_decode` repeats it."""

    batch_size: Any
    output_size: Any
    output_dtype: Any
    tracks_own_finished = False

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Which sequences are finished, the first inputs, and the first state."""
        raise NotImplementedError

    def step(
        self, time: Any, inputs: Any, state: Any, name: str | None = None
    ) -> tuple[Any, Any, Any, Any]:
        """The outputs, the next state, the next inputs, and which sequences are finished."""
        raise NotImplementedError

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """What is made of all outputs at the end."""
        raise NotImplementedError


class BasicDecoderOutput(NamedTuple):
    """The output of a cell, and the class that is sampled of it."""

    rnn_output: Any
    sample_id: Any


class BasicDecoder(Decoder):
    """A cell with a helper, and perhaps a layer on its outputs."""

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
    """Repeat the steps of a decoder: all outputs, the last state, and the lengths of sequences.

    Args:
        decoder: what is repeated.
        output_time_major: the first axis of outputs is time; else it is the batch.
        impute_finished: outputs of finished sequences are zero, and their state stays.
        maximum_iterations: how many steps there are at most.
        parallel_iterations: of the loop.
        swap_memory: of the loop.
        scope: of the variables.
    """
    with tf1.variable_scope(scope, "decoder") as variables:
        if variables.caching_device is None:
            variables.set_caching_device(lambda op: op.device)  # read once a device, not each step
        loop = _Loop(decoder, impute_finished, maximum_iterations)
        _, arrays, state, _, _, lengths = tf1.while_loop(
            lambda *values: tf.logical_not(tf.reduce_all(values[4])),
            loop.step,
            loop.begin(),
            parallel_iterations=parallel_iterations,
            swap_memory=swap_memory,
        )
        outputs = tf.nest.map_structure(lambda array: array.stack(), arrays)
        with contextlib.suppress(NotImplementedError):  # most have nothing to do
            outputs, state = decoder.finalize(outputs, state, lengths)
        if not output_time_major:
            outputs = tf.nest.map_structure(time_first, outputs)
    return outputs, state, lengths


class _Loop:
    """The values of `dynamic_decode` from step to step.

    They are the time, the outputs, the state, the inputs, which sequences are finished, and their
    lengths.
    """

    def __init__(self, decoder: Decoder, impute: bool, most: Any) -> None:
        self._decoder = decoder
        self._impute = impute
        self._most = most

    def begin(self) -> tuple[Any, ...]:
        finished, inputs, state = self._decoder.initialize()
        if self._most is not None:
            finished = tf.logical_or(finished, self._most <= 0)
        arrays = tf.nest.map_structure(self._array, *self._outputs())
        return (tf.constant(0), arrays, state, inputs, finished, tf.zeros_like(finished, tf.int32))

    def step(
        self, time: Any, arrays: Any, state: Any, inputs: Any, finished: Any, lengths: Any
    ) -> tuple[Any, ...]:
        outputs, new_state, inputs, now = self._decoder.step(time, inputs, state)
        if not self._decoder.tracks_own_finished:
            now = tf.logical_or(now, finished)
        if self._most is not None:
            now = tf.logical_or(now, time + 1 >= self._most)
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
    """Row by row; what has no rows, such as a step counter in the state, is the other one."""

    def chosen(value: Any, other: Any) -> Any:
        if isinstance(value, tf.TensorArray) or value.shape.rank == 0:
            return other
        made = tf1.where(condition, value, other)
        made.set_shape(other.shape)
        return made

    return tf.nest.map_structure(chosen, values, others)


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Each row as often as a beam is wide, of tensors or of structures of them."""

    def tiled(tensor: Any) -> Any:
        made = tf.repeat(tensor, multiplier, 0)
        rows = tensor.shape[0] if isinstance(tensor.shape[0], int) else tensor.shape[0].value
        made.set_shape([rows and rows * multiplier, *tensor.shape.as_list()[1:]])
        return made

    with tf1.name_scope(name, "tile_batch", [t, multiplier]):
        return tf.nest.map_structure(tiled, t)
