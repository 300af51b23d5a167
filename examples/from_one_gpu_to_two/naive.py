"""A first port to two GPUs, with three mistakes: python naive.py."""

import tensorflow as tf
from one_gpu import LEARNING_RATE, batches, loss_of, train

tf1 = tf.compat.v1


def build(num_gpus=2):
    """The training step, and its loss."""
    with tf.device("/cpu:0"):
        x, y = batches()
        optimizer = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
    losses = []
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            losses.append(loss_of(x, y))
    with tf.device("/cpu:0"):
        loss = tf.add_n(losses)
        train_op = optimizer.minimize(loss, colocate_gradients_with_ops=True)
    return train_op, loss


if __name__ == "__main__":
    with tf.Graph().as_default():
        train(*build())
