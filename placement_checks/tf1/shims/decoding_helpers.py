"""What a decoder of ``tf.contrib.seq2seq`` reads next: the given sequence, or its own output."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1


class Helper:
    """Gives a decoder its inputs, and samples from its outputs."""

    sample_ids_shape = tf.TensorShape([])
    sample_ids_dtype = tf.int32

    @property
    def batch_size(self) -> Any:
        """How many sequences there are."""
        raise NotImplementedError

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Which sequences are finished, and the first inputs."""
        raise NotImplementedError

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """The classes that outputs stand for."""
        raise NotImplementedError

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """Which sequences are finished then, the inputs after a step, and the state."""
        raise NotImplementedError


class TrainingHelper(Helper):
    """Reads sequences that are given."""

    def __init__(
        self, inputs: Any, sequence_length: Any, time_major: bool = False, name: str | None = None
    ) -> None:
        with tf1.name_scope(name, "TrainingHelper", [inputs, sequence_length]):
            self.inputs = inputs
            self.sequence_length = tf.convert_to_tensor(sequence_length)
            by_time = inputs if time_major else tf.nest.map_structure(time_first, inputs)
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
    """Reads the likeliest class of the output before, until that is the last one."""

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
    """Reads a class that is drawn by the chances of the output before."""

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
            drawn = tf.random.categorical(logits, 1, tf.int32, self._seed)
            return tf.squeeze(drawn, 1)


def time_first(tensor: Any) -> Any:
    """The first two axes of a tensor change places."""
    order = tf.concat([[1, 0], tf.range(2, tf.rank(tensor))], 0)
    moved = tf.transpose(tensor, order)
    static = tensor.shape.as_list()
    moved.set_shape([static[1], static[0], *static[2:]])
    return moved


def _array_of(tensor: Any) -> Any:
    array = tf.TensorArray(tensor.dtype, tf.shape(tensor)[0], element_shape=tensor.shape[1:])
    return array.unstack(tensor)
