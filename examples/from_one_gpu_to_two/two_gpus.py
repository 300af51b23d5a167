"""The classifier on one GPU or several: python two_gpus.py --num_gpus 2."""

import argparse

import tensorflow as tf
from one_gpu import LEARNING_RATE, batches, train

tf1 = tf.compat.v1


def dense(x, name, width):
    """A linear layer, with its variables on the host."""
    with tf.device("/cpu:0"), tf1.variable_scope(name):
        weights = tf1.get_variable("weights", [x.shape[-1], width])
        biases = tf1.get_variable("biases", [width], initializer=tf1.zeros_initializer())
    return tf.matmul(x, weights) + biases


def loss_of(x, y):
    """The mean loss of the rows."""
    logits = dense(tf.nn.relu(dense(x, "hidden", 16)), "classes", 4)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def build(num_gpus=2):
    """The training step, and its loss."""
    with tf.device("/cpu:0"):
        x, y = batches()
        parts = zip(tf.split(x, num_gpus), tf.split(y, num_gpus), strict=True)
        optimizer = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
    losses = []
    for i, (x_part, y_part) in enumerate(parts):
        with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            losses.append(loss_of(x_part, y_part))
    with tf.device("/cpu:0"):
        loss = tf.add_n(losses) / num_gpus
        train_op = optimizer.minimize(loss, colocate_gradients_with_ops=True)
    return train_op, loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_gpus", type=int, default=1)
    with tf.Graph().as_default():
        train(*build(parser.parse_args().num_gpus))
