"""Sequences are decoded as in ``tf.contrib.seq2seq``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.tf1 import renamed
from placement_checks.tf1.shims import seq2seq

tf1 = tf.compat.v1
ROWS = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
LENGTHS = np.array([4, 2, 1])


pytestmark = pytest.mark.usefixtures("used")


def values(*tensors: Any) -> Any:
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return session.run(tensors)


@pytest.mark.parametrize("time_major", [False, True])
def test_given_sequences_are_decoded_like_an_rnn(time_major: bool) -> None:
    cell = renamed.cells().BasicLSTMCell(5)
    rows = np.moveaxis(ROWS, 1, 0) if time_major else ROWS
    helper = seq2seq.TrainingHelper(tf.constant(rows), LENGTHS, time_major)
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(3, tf.float32))

    outputs, state, lengths = seq2seq.dynamic_decode(
        decoder, output_time_major=time_major, impute_finished=True
    )
    expected, expected_state = tf1.nn.dynamic_rnn(
        cell, tf.constant(rows), LENGTHS, dtype=tf.float32, time_major=time_major
    )
    made, ids, state, lengths, expected, expected_state = values(
        outputs.rnn_output, outputs.sample_id, state, lengths, expected, expected_state
    )

    np.testing.assert_allclose(made, expected, atol=1e-6)
    np.testing.assert_allclose(state, expected_state, atol=1e-6)
    assert (ids == expected.argmax(-1)).all()
    assert [*lengths] == [*LENGTHS]
    assert outputs.rnn_output.shape.as_list()[2] == 5


def test_a_layer_on_the_outputs_and_gradients() -> None:
    cell = renamed.cells().GRUCell(5)
    helper = seq2seq.TrainingHelper(tf.constant(ROWS), LENGTHS)
    layer = renamed.layers().Dense(7, use_bias=False)
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(3, tf.float32), layer)

    outputs, _, _ = seq2seq.dynamic_decode(decoder)
    variables = tf1.trainable_variables()
    gradients = tf1.gradients(outputs.rnn_output, variables)

    assert outputs.rnn_output.shape.as_list() == [3, None, 7]
    assert all(gradient is not None for gradient in gradients)
    assert {variable.name.split("/")[0] for variable in variables} == {"decoder"}
    assert values(outputs.rnn_output)[0].shape == (3, 4, 7)


class Counting:
    """A cell that predicts the class after its input."""

    output_size = 6

    def __call__(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        return tf.roll(inputs, 1, 1), state + 1


Start = Callable[..., Any]


@pytest.mark.parametrize("helper", [seq2seq.GreedyEmbeddingHelper, seq2seq.SampleEmbeddingHelper])
def test_outputs_are_read_until_the_last_class(helper: Start) -> None:
    embedding = tf.eye(6) * 100  # large enough to be sampled always
    start = helper(embedding, [0, 2], 4)
    decoder = seq2seq.BasicDecoder(Counting(), start, tf.zeros([2, 1]))

    outputs, state, lengths = seq2seq.dynamic_decode(decoder, impute_finished=True)
    ids, state, lengths = values(outputs.sample_id, state, lengths)

    assert ids.tolist() == [[1, 2, 3, 4], [3, 4, 0, 0]]
    assert lengths.tolist() == [4, 2]
    assert state.tolist() == [[4], [2]]


@pytest.mark.parametrize("most", [0, 2])
def test_no_more_steps_than_allowed(most: int) -> None:
    start = seq2seq.GreedyEmbeddingHelper(lambda ids: tf.one_hot(ids, 6), [0, 1], 5)
    decoder = seq2seq.BasicDecoder(Counting(), start, tf.zeros([2, 1]))

    outputs, _, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=most)
    ids, lengths = values(outputs.sample_id, lengths)

    assert ids.tolist() == [[1, 2], [2, 3]][:2] if most else ids.shape == (2, 0)
    assert lengths.tolist() == [most, most]


def test_a_temperature_flattens_the_chances() -> None:
    helper = seq2seq.SampleEmbeddingHelper(tf.eye(2), [0] * 400, 9, 1000.0, seed=1)

    (drawn,) = values(helper.sample(0, tf.constant([[100.0, 0.0]] * 400), None))

    assert 100 < drawn.sum() < 300


def test_a_custom_decoder() -> None:
    class Mine(seq2seq.Decoder):
        batch_size = 2
        output_size = tf.TensorShape([])
        output_dtype = tf.int32
        tracks_own_finished = True

        def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
            return tf.constant([False, False]), tf.constant([0, 0]), tf.constant(1)

        def step(
            self, time: Any, inputs: Any, state: Any, name: str | None = None
        ) -> tuple[Any, Any, Any, Any]:
            return inputs + state, state * 2, inputs + 1, tf.fill([2], time >= 2)

        def finalize(
            self, outputs: Any, final_state: Any, sequence_lengths: Any
        ) -> tuple[Any, Any]:
            return outputs * 10, final_state

    outputs, state, lengths = seq2seq.dynamic_decode(Mine(), output_time_major=True)

    made, state, lengths = values(outputs, state, lengths)
    assert made.tolist() == [[10, 10], [30, 30], [60, 60]]
    assert (state, lengths.tolist()) == (8, [3, 3])


def test_rows_for_a_beam() -> None:
    rows = tf1.placeholder(tf.float32, [None, 2])
    made = seq2seq.tile_batch((tf.constant([[1], [2]]), rows), 2)

    assert values(made[0])[0].tolist() == [[1], [1], [2], [2]]
    assert made[0].shape.as_list() == [4, 1]
    assert made[1].shape.as_list() == [None, 2]
