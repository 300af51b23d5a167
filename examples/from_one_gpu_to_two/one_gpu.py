"""Train a small classifier on one GPU: python one_gpu.py."""

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

ROWS = 64  # in a batch
LEARNING_RATE = 0.1


def batches():
    """The next batch: x, float32 of shape (ROWS, 32), and the class of each row."""
    x = np.random.default_rng(0).normal(size=(4096, 32)).astype("float32")
    y = x[:, :4].argmax(axis=1)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=0).repeat()
    return tf1.data.make_one_shot_iterator(rows.batch(ROWS, drop_remainder=True)).get_next()


def dense(x, name, width):
    """A linear layer, with its variables on the host."""
    with tf.device("/cpu:0"), tf1.variable_scope(name):
        weights = tf1.get_variable("weights", [x.shape[-1], width])
        biases = tf.Variable(tf.zeros([width]), name="biases")
    return tf.matmul(x, weights) + biases


def loss_of(x, y):
    """The mean loss of the rows."""
    logits = dense(tf.nn.relu(dense(x, "hidden", 16)), "classes", 4)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def build():
    """The training step, and its loss."""
    x, y = batches()
    loss = loss_of(x, y)
    return tf1.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss), loss


def train(train_op, loss, steps=200):
    """Train, and print the loss of every 50th step."""
    with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
        session.run(tf1.global_variables_initializer())
        for step in range(1, steps + 1):
            _, value = session.run([train_op, loss])
            if step % 50 == 0:
                print(f"step {step}: loss {value:.2f}")


if __name__ == "__main__":
    with tf.Graph().as_default():
        train(*build())
